// A module of kind "opencl" as bytes: the form that TVM's compiler writes into a library.

#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rpcsys {

// A kernel as its host code calls it: its own arguments, then one number for each tag ("blockIdx.x", "threadIdx.x", …).
struct KernelInfo
{
    std::string name;
    std::vector<DLDataType> arguments;
    std::vector<std::string> launch_tags;
    std::vector<int32_t> extra_tags;  // kept for `encode` alone
};

struct Payload
{
    std::string format;  // "cl": code is source
    std::map<std::string, KernelInfo> kernels;
    std::string code;
};

std::string encode(const Payload &payload);

// Every length is checked against the bytes that are left. Raises a ValueError of one line.
Payload decode(const char *data, size_t size);

}  // namespace rpcsys

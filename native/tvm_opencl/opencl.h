// What the files of this plug-in share: devices, their memory, and errors.
//
// Loaded beside libtvm_runtime, the plug-in serves TVM's devices of kind "opencl" and modules of kind "opencl". It uses
// OpenCL 1.2, which every driver has. Nothing is asked of a driver before a device is used: processes may fork until
// then.

#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace rpcsys {

// Raise an error of the class `kind` in Python. `text` is one line.
[[noreturn]] void fail(const char *kind, const std::string &text);

// Raise a RuntimeError that names the code, unless it is CL_SUCCESS. `what` begins the line: "opencl:0: …".
void check(cl_int code, const std::string &what);

// The name of a code that an OpenCL function returns, with its number.
std::string name_of(cl_int code);

// A device of any platform of this machine. Its queue is in order, and all threads share it.
class Device
{
public:
    Device(int number, cl_platform_id platform, cl_device_id id);

    const int number;
    const cl_device_id id;

    std::string name() const { return "opencl:" + std::to_string(number); }
    std::string text(cl_device_info what) const;

    template <typename T> T value(cl_device_info what) const
    {
        T found{};
        check(clGetDeviceInfo(id, what, sizeof found, &found, nullptr), name() + " does not describe itself");
        return found;
    }

    // Both are made at their first use.
    cl_context context();
    cl_command_queue queue();

    // Count `bytes` of memory as used. Raises a MemoryError if there are fewer, with what is asked for and free.
    void reserve(size_t bytes);
    void release(size_t bytes) { used_ -= bytes; }
    size_t memory() const { return memory_; }
    size_t free_memory() const;

private:
    void open();
    [[noreturn]] void refuse(size_t bytes, size_t free) const;

    const cl_platform_id platform_;
    const size_t memory_;
    const size_t largest_;  // bytes of one array
    std::atomic<size_t> used_{0};
    std::once_flag opened_;
    cl_context context_ = nullptr;
    cl_command_queue queue_ = nullptr;
};

// How many devices there are; 0, too, if there is no driver.
int count_devices();

// The device with that number: graphics processors and accelerators come before CPUs. Raises a RuntimeError.
Device &device(int number);

// The device on which this thread launches kernels.
Device &current_device();
void set_current_device(int number);

// Memory of a device: what `data` of a tensor points to. TVM wants that aligned.
struct alignas(64) Memory
{
    Device &device;
    cl_mem buffer;
    size_t bytes;
};

}  // namespace rpcsys

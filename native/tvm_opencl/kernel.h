// One kernel of a module, built for each device that runs it.

#pragma once

#include <tvm/ffi/function.h>

#include <map>

#include "opencl.h"
#include "payload.h"

namespace rpcsys {

class Kernel
{
public:
    // Raises a ValueError if OpenCL cannot have such arguments or launch parameters.
    Kernel(KernelInfo info, std::string source);
    ~Kernel();
    Kernel(const Kernel &) = delete;
    Kernel &operator=(const Kernel &) = delete;

    // Start it on the thread's current device; returns before it has run. Raises a TypeError for wrong arguments, a
    // RuntimeError if it does not build or start.
    void launch(tvm::ffi::PackedArgs args);

private:
    struct Built
    {
        cl_program program = nullptr;
        cl_kernel kernel = nullptr;
        // OpenCL keeps the arguments in the kernel: from the first one to the launch, it is one thread's.
        std::mutex setting;
    };

    Built &built(Device &device);
    void build(Built &made, Device &device);
    void set_argument(cl_kernel kernel, Device &device, int index, tvm::ffi::AnyView value);
    std::string on(const Device &device) const { return "kernel " + info_.name + " on " + device.name(); }

    const KernelInfo info_;
    const std::string source_;
    std::vector<int> sizes_;  // for each launch tag: 0 to 2 for a direction of the grid, 3 to 5 of a group
    cl_uint directions_ = 1;
    std::mutex building_;
    std::map<int, Built> built_;  // by the device's number
};

}  // namespace rpcsys

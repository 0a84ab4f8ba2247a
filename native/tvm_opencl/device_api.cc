// TVM's device API for OpenCL: memory, copies, waiting, and what a device says of itself.

#include <tvm/ffi/function.h>
#include <tvm/runtime/device_api.h>
#include <workspace_pool.h>

#include <vector>

#include "opencl.h"

namespace rpcsys {

namespace {

using tvm::runtime::DeviceAttrKind;

// "OpenCL 3.0 …" as 300.
int64_t version_number(const std::string &text)
{
    int major = 0, minor = 0;
    if (sscanf(text.c_str(), "OpenCL %d.%d", &major, &minor) != 2) return 0;
    return major * 100 + minor * 10;
}

// The most work items of a group in each direction, as TVM's clients read it: "[4096, 4096, 64]".
std::string group_sizes(const Device &device)
{
    std::vector<size_t> sizes(device.value<cl_uint>(CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS));
    size_t bytes = sizes.size() * sizeof(size_t);
    check(clGetDeviceInfo(device.id, CL_DEVICE_MAX_WORK_ITEM_SIZES, bytes, sizes.data(), nullptr),
          device.name() + " does not describe itself");
    std::string text;
    for (size_t size : sizes) text += (text.empty() ? "[" : ", ") + std::to_string(size);
    return text + "]";
}

tvm::ffi::Any attribute(const Device &device, DeviceAttrKind kind)
{
    switch (kind) {
    case tvm::runtime::kMaxThreadsPerBlock: return (int64_t)device.value<size_t>(CL_DEVICE_MAX_WORK_GROUP_SIZE);
    case tvm::runtime::kWarpSize: return (int64_t)1;  // OpenCL 1.2 has no word for it
    case tvm::runtime::kMaxSharedMemoryPerBlock: return (int64_t)device.value<cl_ulong>(CL_DEVICE_LOCAL_MEM_SIZE);
    case tvm::runtime::kComputeVersion: return tvm::ffi::String(device.text(CL_DEVICE_VERSION));
    case tvm::runtime::kDeviceName: return tvm::ffi::String(device.text(CL_DEVICE_NAME));
    case tvm::runtime::kMaxClockRate: return (int64_t)device.value<cl_uint>(CL_DEVICE_MAX_CLOCK_FREQUENCY) * 1000;
    case tvm::runtime::kMultiProcessorCount: return (int64_t)device.value<cl_uint>(CL_DEVICE_MAX_COMPUTE_UNITS);
    case tvm::runtime::kMaxThreadDimensions: return tvm::ffi::String(group_sizes(device));
    case tvm::runtime::kApiVersion: return version_number(device.text(CL_DEVICE_VERSION));
    case tvm::runtime::kDriverVersion: return tvm::ffi::String(device.text(CL_DRIVER_VERSION));
    case tvm::runtime::kL2CacheSizeBytes: return (int64_t)device.value<cl_ulong>(CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
    case tvm::runtime::kTotalGlobalMemory: return (int64_t)device.memory();
    case tvm::runtime::kAvailableGlobalMemory: return (int64_t)device.free_memory();
    default: return nullptr;
    }
}

const Memory &memory(const void *data)
{
    return *static_cast<const Memory *>(data);
}

class OpenCLDevices final : public tvm::runtime::DeviceAPI
{
public:
    // Never deleted: tensors may be dropped until the process has ended.
    static OpenCLDevices *all()
    {
        static auto *once = new OpenCLDevices;
        return once;
    }

    void SetDevice(DLDevice dev) final { set_current_device(dev.device_id); }

    void GetAttr(DLDevice dev, DeviceAttrKind kind, tvm::ffi::Any *rv) final
    {
        if (kind == tvm::runtime::kExist)
            *rv = (int64_t)(dev.device_id >= 0 && dev.device_id < count_devices());
        else
            *rv = attribute(device(dev.device_id), kind);
    }

    void GetTargetProperty(DLDevice dev, const std::string &property, tvm::ffi::Any *rv) final
    {
        if (property == "max_num_threads" || property == "max_threads_per_block")
            *rv = attribute(device(dev.device_id), tvm::runtime::kMaxThreadsPerBlock);
        else if (property == "max_shared_memory_per_block")
            *rv = attribute(device(dev.device_id), tvm::runtime::kMaxSharedMemoryPerBlock);
        else if (property == "thread_warp_size")
            *rv = attribute(device(dev.device_id), tvm::runtime::kWarpSize);
    }

    void *AllocDataSpace(DLDevice dev, size_t nbytes, size_t alignment, DLDataType type_hint) final
    {
        Device &owner = device(dev.device_id);
        size_t bytes = nbytes ? nbytes : 1;  // an empty array has memory, too
        owner.reserve(bytes);
        try {
            cl_int code;
            cl_mem buffer = clCreateBuffer(owner.context(), CL_MEM_READ_WRITE, bytes, nullptr, &code);
            std::string sizes = std::to_string(bytes) + " bytes, and " + std::to_string(owner.free_memory() + bytes);
            check(code, owner.name() + " gives no memory of " + sizes + " should be free");
            return new Memory{owner, buffer, bytes};
        } catch (...) {
            owner.release(bytes);
            throw;
        }
    }

    // Commands under way keep the memory: the driver frees it behind them.
    void FreeDataSpace(DLDevice dev, void *ptr) final
    {
        std::unique_ptr<Memory> gone(static_cast<Memory *>(ptr));
        gone->device.release(gone->bytes);
        check(clReleaseMemObject(gone->buffer), gone->device.name() + " does not free its memory");
    }

    void StreamSync(DLDevice dev, TVMStreamHandle stream) final
    {
        Device &one = device(dev.device_id);
        check(clFinish(one.queue()), one.name() + ": a kernel has failed");
    }

    // Both are kept for the next call of this thread.
    void *AllocWorkspace(DLDevice dev, size_t nbytes, DLDataType type_hint) final;
    void FreeWorkspace(DLDevice dev, void *ptr) final;

protected:
    void CopyDataFromTo(const void *from, size_t from_offset, void *to, size_t to_offset, size_t nbytes,
                        DLDevice dev_from, DLDevice dev_to, DLDataType type_hint, TVMStreamHandle stream) final
    {
        if (nbytes == 0) return;
        if (dev_from.device_type == kDLCPU)
            write(static_cast<const char *>(from) + from_offset, memory(to), to_offset, nbytes);
        else if (dev_to.device_type == kDLCPU)
            read(memory(from), from_offset, static_cast<char *>(to) + to_offset, nbytes);
        else if (&memory(from).device == &memory(to).device)
            copy(memory(from), from_offset, memory(to), to_offset, nbytes);
        else {
            std::vector<char> host(nbytes);
            read(memory(from), from_offset, host.data(), nbytes);
            write(host.data(), memory(to), to_offset, nbytes);
        }
    }

private:
    static void write(const char *from, const Memory &to, size_t offset, size_t bytes)
    {
        check(clEnqueueWriteBuffer(to.device.queue(), to.buffer, CL_TRUE, offset, bytes, from, 0, nullptr, nullptr),
              to.device.name() + ": the copy to it has failed");
    }

    static void read(const Memory &from, size_t offset, char *to, size_t bytes)
    {
        check(clEnqueueReadBuffer(from.device.queue(), from.buffer, CL_TRUE, offset, bytes, to, 0, nullptr, nullptr),
              from.device.name() + ": the copy from it, or a kernel before it, has failed");
    }

    static void copy(const Memory &from, size_t from_offset, const Memory &to, size_t to_offset, size_t bytes)
    {
        check(clEnqueueCopyBuffer(from.device.queue(), from.buffer, to.buffer, from_offset, to_offset, bytes, 0,
                                  nullptr, nullptr),
              from.device.name() + ": a copy on it has failed");
    }
};

struct Workspaces : tvm::runtime::WorkspacePool
{
    Workspaces() : WorkspacePool(kDLOpenCL, OpenCLDevices::all()) {}
};

Workspaces &workspaces()
{
    static thread_local Workspaces own;
    return own;
}

void *OpenCLDevices::AllocWorkspace(DLDevice dev, size_t nbytes, DLDataType type_hint)
{
    return workspaces().AllocWorkspace(dev, nbytes);
}

void OpenCLDevices::FreeWorkspace(DLDevice dev, void *ptr)
{
    workspaces().FreeWorkspace(dev, ptr);
}

}  // namespace

void *device_api()
{
    return static_cast<tvm::runtime::DeviceAPI *>(OpenCLDevices::all());
}

}  // namespace rpcsys

// Finds the devices of all platforms, and opens them.

#include <tvm/ffi/error.h>

#include <algorithm>
#include <map>

#include "opencl.h"

namespace rpcsys {

namespace {

struct Found
{
    std::vector<std::unique_ptr<Device>> devices;
    std::string why;  // there are none
};

const std::map<cl_int, const char *> NAMES = {
    {CL_DEVICE_NOT_FOUND, "CL_DEVICE_NOT_FOUND"},
    {CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE"},
    {CL_COMPILER_NOT_AVAILABLE, "CL_COMPILER_NOT_AVAILABLE"},
    {CL_MEM_OBJECT_ALLOCATION_FAILURE, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
    {CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES"},
    {CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY"},
    {CL_MEM_COPY_OVERLAP, "CL_MEM_COPY_OVERLAP"},
    {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE"},
    {CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
    {CL_INVALID_VALUE, "CL_INVALID_VALUE"},
    {CL_INVALID_DEVICE, "CL_INVALID_DEVICE"},
    {CL_INVALID_CONTEXT, "CL_INVALID_CONTEXT"},
    {CL_INVALID_COMMAND_QUEUE, "CL_INVALID_COMMAND_QUEUE"},
    {CL_INVALID_MEM_OBJECT, "CL_INVALID_MEM_OBJECT"},
    {CL_INVALID_BINARY, "CL_INVALID_BINARY"},
    {CL_INVALID_BUILD_OPTIONS, "CL_INVALID_BUILD_OPTIONS"},
    {CL_INVALID_PROGRAM_EXECUTABLE, "CL_INVALID_PROGRAM_EXECUTABLE"},
    {CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME"},
    {CL_INVALID_KERNEL_DEFINITION, "CL_INVALID_KERNEL_DEFINITION"},
    {CL_INVALID_ARG_INDEX, "CL_INVALID_ARG_INDEX"},
    {CL_INVALID_ARG_VALUE, "CL_INVALID_ARG_VALUE"},
    {CL_INVALID_ARG_SIZE, "CL_INVALID_ARG_SIZE"},
    {CL_INVALID_KERNEL_ARGS, "CL_INVALID_KERNEL_ARGS"},
    {CL_INVALID_WORK_GROUP_SIZE, "CL_INVALID_WORK_GROUP_SIZE"},
    {CL_INVALID_WORK_ITEM_SIZE, "CL_INVALID_WORK_ITEM_SIZE"},
    {CL_INVALID_OPERATION, "CL_INVALID_OPERATION"},
    {CL_INVALID_BUFFER_SIZE, "CL_INVALID_BUFFER_SIZE"},
    {CL_INVALID_GLOBAL_WORK_SIZE, "CL_INVALID_GLOBAL_WORK_SIZE"},
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
};

std::vector<cl_device_id> devices_of(cl_platform_id platform)
{
    cl_uint count = 0;
    cl_int code = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
    if (code == CL_DEVICE_NOT_FOUND || count == 0) return {};
    check(code, "OpenCL does not list its devices");
    std::vector<cl_device_id> ids(count);
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr), "OpenCL does not list its devices");
    return ids;
}

bool is_cpu(cl_device_id id)
{
    cl_device_type type = 0;
    check(clGetDeviceInfo(id, CL_DEVICE_TYPE, sizeof type, &type, nullptr), "OpenCL does not describe its devices");
    return (type & CL_DEVICE_TYPE_CPU) != 0;
}

Found find()
{
    Found found;
    cl_uint count = 0;
    cl_int code = clGetPlatformIDs(0, nullptr, &count);
    if (code != CL_SUCCESS || count == 0) {
        found.why = "there is no OpenCL platform on this machine; install the driver of its device "
                    "(for CPUs on Debian: apt-get install pocl-opencl-icd)";
        return found;
    }
    std::vector<cl_platform_id> platforms(count);
    check(clGetPlatformIDs(count, platforms.data(), nullptr), "OpenCL does not list its platforms");
    std::vector<std::pair<cl_platform_id, cl_device_id>> all;
    for (cl_platform_id platform : platforms)
        for (cl_device_id id : devices_of(platform)) all.emplace_back(platform, id);
    std::stable_partition(all.begin(), all.end(), [](const auto &each) { return !is_cpu(each.second); });
    for (const auto &[platform, id] : all)
        found.devices.push_back(std::make_unique<Device>((int)found.devices.size(), platform, id));
    if (all.empty()) found.why = "no OpenCL platform on this machine has a device; is its driver loaded?";
    return found;
}

const Found &found()
{
    static const Found *once = new Found(find());  // never deleted: threads may run until the process has ended
    return *once;
}

thread_local int current = 0;

}  // namespace

void fail(const char *kind, const std::string &text)
{
    throw tvm::ffi::Error(kind, text, "");
}

std::string name_of(cl_int code)
{
    auto known = NAMES.find(code);
    return known == NAMES.end() ? "OpenCL's error " + std::to_string(code)
                                : known->second + (" (" + std::to_string(code) + ")");
}

void check(cl_int code, const std::string &what)
{
    if (code != CL_SUCCESS) fail("RuntimeError", what + ": " + name_of(code));
}

Device::Device(int number, cl_platform_id platform, cl_device_id id)
    : number(number), id(id), platform_(platform), memory_(value<cl_ulong>(CL_DEVICE_GLOBAL_MEM_SIZE)),
      largest_(value<cl_ulong>(CL_DEVICE_MAX_MEM_ALLOC_SIZE))
{
}

std::string Device::text(cl_device_info what) const
{
    size_t size = 0;
    check(clGetDeviceInfo(id, what, 0, nullptr, &size), name() + " does not describe itself");
    std::string found(size, '\0');
    check(clGetDeviceInfo(id, what, size, &found[0], nullptr), name() + " does not describe itself");
    return found.substr(0, found.find('\0'));
}

void Device::open()
{
    cl_int code;
    const cl_context_properties platform[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform_, 0};
    cl_context context = clCreateContext(platform, 1, &id, nullptr, nullptr, &code);
    check(code, name() + " cannot be opened");
    cl_command_queue queue = clCreateCommandQueue(context, id, 0, &code);
    if (code != CL_SUCCESS) clReleaseContext(context);
    check(code, name() + " has no queue");
    context_ = context;
    queue_ = queue;
}

cl_context Device::context()
{
    std::call_once(opened_, [this] { open(); });
    return context_;
}

cl_command_queue Device::queue()
{
    std::call_once(opened_, [this] { open(); });
    return queue_;
}

size_t Device::free_memory() const
{
    size_t used = used_;
    return used < memory_ ? memory_ - used : 0;
}

void Device::reserve(size_t bytes)
{
    size_t used = used_;
    do
        if (bytes > largest_ || bytes > memory_ || used > memory_ - bytes)
            refuse(bytes, used < memory_ ? memory_ - used : 0);
    while (!used_.compare_exchange_weak(used, used + bytes));
}

void Device::refuse(size_t bytes, size_t free) const
{
    std::string text = name() + " is out of memory: " + std::to_string(bytes) + " bytes are asked for, ";
    text += std::to_string(free) + " of " + std::to_string(memory_) + " are free";
    if (bytes > largest_) text += ", and one array has at most " + std::to_string(largest_);
    fail("MemoryError", text);
}

int count_devices()
{
    return (int)found().devices.size();
}

Device &device(int number)
{
    const Found &all = found();
    if (all.devices.empty()) fail("RuntimeError", all.why);
    int count = (int)all.devices.size();
    if (number < 0 || number >= count) {
        std::string there = count == 1 ? "the only one is opencl:0" : "the last is opencl:" + std::to_string(count - 1);
        fail("RuntimeError", "there is no opencl:" + std::to_string(number) + " on this machine; " + there);
    }
    return *all.devices[number];
}

Device &current_device()
{
    return device(current);
}

void set_current_device(int number)
{
    current = device(number).number;
}

}  // namespace rpcsys

#include "kernel.h"

#include <algorithm>
#include <cstring>

namespace rpcsys {

namespace {

// A direction of the grid (0 to 2) or of a group (3 to 5); -1 for a tag that OpenCL has nothing for.
int direction(const std::string &tag)
{
    for (const char *prefix : {"blockIdx.", "threadIdx."})
        if (tag.rfind(prefix, 0) == 0) {
            int index = tag.back() - 'x';
            bool known = tag.size() == std::strlen(prefix) + 1 && index >= 0 && index < 3;
            return known ? index + (*prefix == 't' ? 3 : 0) : -1;
        }
    return -1;
}

bool can_be_argument(DLDataType type)
{
    if (type.lanes != 1) return false;
    if (type.code == kDLOpaqueHandle) return true;
    if (type.code == kDLFloat) return type.bits == 32 || type.bits == 64;
    bool whole = type.code == kDLInt || type.code == kDLUInt;
    return whole && (type.bits == 8 || type.bits == 16 || type.bits == 32 || type.bits == 64);
}

// The first line of a compiler's output with an error, else its first line.
std::string first_line(const std::string &log)
{
    auto line_at = [&](size_t at) {
        size_t start = at ? log.rfind('\n', at) + 1 : 0;
        return log.substr(start, log.find('\n', at) - start);
    };
    size_t error = log.find("error");
    return line_at(error != std::string::npos ? error : std::min(log.find_first_not_of(" \r\n\t"), log.size()));
}

std::string build_log(cl_program program, cl_device_id device)
{
    size_t size = 0;
    if (clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) != CL_SUCCESS) return "";
    std::string log(size, '\0');
    if (clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, &log[0], nullptr) != CL_SUCCESS) return "";
    return log.substr(0, log.find('\0'));
}

}  // namespace

Kernel::Kernel(KernelInfo info, std::string source) : info_(std::move(info)), source_(std::move(source))
{
    for (DLDataType type : info_.arguments)
        if (!can_be_argument(type))
            fail("ValueError", "kernel " + info_.name + " has an argument of a type that OpenCL's kernels cannot have");
    for (const std::string &tag : info_.launch_tags) {
        int found = direction(tag);
        if (found < 0) fail("ValueError", "kernel " + info_.name + " needs " + tag + ", which OpenCL does not have");
        sizes_.push_back(found);
        directions_ = std::max(directions_, (cl_uint)(found % 3 + 1));
    }
}

Kernel::~Kernel()
{
    for (auto &[number, made] : built_) {
        if (made.kernel) clReleaseKernel(made.kernel);
        if (made.program) clReleaseProgram(made.program);
    }
}

Kernel::Built &Kernel::built(Device &device)
{
    std::lock_guard<std::mutex> lock(building_);
    Built &made = built_[device.number];
    if (!made.kernel) build(made, device);
    return made;
}

void Kernel::build(Built &made, Device &device)
{
    cl_int code;
    if (!made.program) {
        const char *text = source_.data();
        size_t size = source_.size();
        made.program = clCreateProgramWithSource(device.context(), 1, &text, &size, &code);
        check(code, on(device) + " cannot be built");
    }
    code = clBuildProgram(made.program, 1, &device.id, nullptr, nullptr, nullptr);
    if (code == CL_BUILD_PROGRAM_FAILURE)
        fail("RuntimeError", on(device) + " does not build: " + first_line(build_log(made.program, device.id)));
    check(code, on(device) + " cannot be built");
    made.kernel = clCreateKernel(made.program, info_.name.c_str(), &code);
    check(code, on(device) + " is not what its source has");
}

void Kernel::set_argument(cl_kernel kernel, Device &device, int index, tvm::ffi::AnyView value)
{
    DLDataType type = info_.arguments[index];
    cl_int code;
    if (type.code == kDLOpaqueHandle) {
        auto *memory = static_cast<Memory *>(value.cast<void *>());
        if (memory && &memory->device != &device)
            fail("ValueError", on(device) + ": its argument " + std::to_string(index) + " is on " + memory->device.name());
        code = clSetKernelArg(kernel, index, sizeof(cl_mem), memory ? &memory->buffer : nullptr);
    } else if (type.code == kDLFloat && type.bits == 32) {
        float number = (float)value.cast<double>();
        code = clSetKernelArg(kernel, index, sizeof number, &number);
    } else if (type.code == kDLFloat) {
        double number = value.cast<double>();
        code = clSetKernelArg(kernel, index, sizeof number, &number);
    } else {
        int64_t number = value.cast<int64_t>();  // its first bytes are the smaller number
        code = clSetKernelArg(kernel, index, type.bits / 8, &number);
    }
    check(code, on(device) + " does not take its argument " + std::to_string(index));
}

void Kernel::launch(tvm::ffi::PackedArgs args)
{
    int count = (int)info_.arguments.size(), wanted = count + (int)sizes_.size();
    if (args.size() != wanted)
        fail("TypeError", "kernel " + info_.name + " takes " + std::to_string(wanted) + " arguments with its sizes, not " +
                              std::to_string(args.size()));
    size_t sizes[6] = {1, 1, 1, 1, 1, 1};
    for (size_t i = 0; i < sizes_.size(); i++) sizes[sizes_[i]] = args[count + (int)i].cast<int64_t>();
    size_t *group = sizes + 3, all[3];
    for (int i = 0; i < 3; i++) all[i] = sizes[i] * group[i];
    if (all[0] * all[1] * all[2] == 0) return;  // an array of a free extent is empty

    Device &device = current_device();
    Built &made = built(device);
    std::lock_guard<std::mutex> lock(made.setting);
    for (int i = 0; i < count; i++) set_argument(made.kernel, device, i, args[i]);
    cl_int code =
        clEnqueueNDRangeKernel(device.queue(), made.kernel, directions_, nullptr, all, group, 0, nullptr, nullptr);
    std::string items = std::to_string(group[0] * group[1] * group[2]);
    if (code == CL_INVALID_WORK_GROUP_SIZE || code == CL_INVALID_WORK_ITEM_SIZE)
        check(code, on(device) + " has groups of " + items + " work items, which the device does not take");
    check(code, on(device) + " does not start");
}

}  // namespace rpcsys

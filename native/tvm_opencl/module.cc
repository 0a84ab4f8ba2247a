// Modules of kind "opencl", and the names under which TVM finds all of this.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include "kernel.h"

namespace ffi = tvm::ffi;

namespace rpcsys {

void *device_api();  // device_api.cc

// A kernel as TVM's compiler hands it over. Its layout is that of TVM's own class of this name.
class FunctionInfo : public ffi::Object
{
public:
    ffi::String name;
    ffi::Array<DLDataType> arguments;
    ffi::Array<ffi::String> launch_tags;
    ffi::Array<ffi::Any> extra_tags;
    TVM_FFI_DECLARE_OBJECT_INFO_FINAL("runtime.FunctionInfo", FunctionInfo, ffi::Object);
};

class FunctionInfoRef : public ffi::ObjectRef
{
public:
    TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(FunctionInfoRef, ffi::ObjectRef, FunctionInfo);
};

namespace {

const std::string MARK = "// Function: ";  // begins the source of a kernel; its name follows

// Each kernel's own part of the source: helper functions may stand in several parts.
std::map<std::string, std::string> parts(const std::string &code)
{
    std::map<std::string, std::string> found;
    for (size_t at = code.find(MARK); at != std::string::npos;) {
        size_t name = at + MARK.size(), next = code.find(MARK, name);
        found[code.substr(name, code.find('\n', name) - name)] = code.substr(at, next - at);
        at = next;
    }
    return found;
}

class OpenCLModule final : public ffi::ModuleObj
{
public:
    explicit OpenCLModule(Payload payload, ffi::Map<ffi::String, ffi::String> sources = {})
        : payload_(std::move(payload)), sources_(std::move(sources))
    {
        if (payload_.format != "cl")
            fail("ValueError", "a module of kind opencl has its kernels as '" + payload_.format + "', not as source");
        auto part = parts(payload_.code);
        for (const auto &[name, info] : payload_.kernels) {
            auto own = part.find(info.name);
            kernels_[name] = std::make_shared<Kernel>(info, own == part.end() ? payload_.code : own->second);
        }
    }

    const char *kind() const final { return "opencl"; }

    int GetPropertyMask() const final { return ffi::Module::kBinarySerializable | ffi::Module::kRunnable; }

    ffi::Optional<ffi::Function> GetFunction(const ffi::String &name) final
    {
        auto found = kernels_.find(name);
        if (found == kernels_.end()) return std::nullopt;
        return ffi::Function::FromPacked(
            [kernel = found->second](ffi::PackedArgs args, ffi::Any *) { kernel->launch(args); });
    }

    ffi::Bytes SaveToBytes() const final { return ffi::Bytes(encode(payload_)); }

    ffi::String InspectSource(const ffi::String &format) const final
    {
        if (auto kept = sources_.find(format); kept != sources_.end()) return (*kept).second;
        return format.empty() || format == "cl" ? ffi::String(payload_.code) : ffi::String();
    }

private:
    const Payload payload_;
    const ffi::Map<ffi::String, ffi::String> sources_;  // of the compiler, for people
    std::map<std::string, std::shared_ptr<Kernel>> kernels_;
};

ffi::Module load(const ffi::Bytes &bytes)
{
    return ffi::Module(ffi::make_object<OpenCLModule>(decode(bytes.data(), bytes.size())));
}

ffi::Module create(const ffi::Bytes &code, const ffi::String &format,
                   const ffi::Map<ffi::String, FunctionInfoRef> &functions,
                   const ffi::Map<ffi::String, ffi::String> &sources)
{
    Payload payload{format, {}, code};
    for (const auto &[key, function] : functions) {
        KernelInfo &kernel = payload.kernels[key];
        kernel.name = function->name;
        for (DLDataType type : function->arguments) kernel.arguments.push_back(type);
        for (const ffi::String &tag : function->launch_tags) kernel.launch_tags.push_back(tag);
        for (const ffi::Any &tag : function->extra_tags) kernel.extra_tags.push_back(tag.cast<int>());
    }
    return ffi::Module(ffi::make_object<OpenCLModule>(std::move(payload), sources));
}

// A TVM that was built with OpenCL keeps its own.
bool register_all()
{
    if (ffi::Function::GetGlobal("device_api.opencl")) return false;
    ffi::Function::SetGlobal("device_api.opencl", ffi::Function::FromTyped(device_api));
    ffi::Function::SetGlobal("ffi.Module.load_from_bytes.opencl", ffi::Function::FromTyped(load));
    ffi::Function::SetGlobal("ffi.Module.create.opencl", ffi::Function::FromTyped(create));
    return true;
}

const bool registered = register_all();

}  // namespace

}  // namespace rpcsys

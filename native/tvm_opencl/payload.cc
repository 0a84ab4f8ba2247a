// str format | u64 count | for each kernel: str key, str name, types, strs, tags | str code
//
// Little-endian. A str is a u64 length and that many bytes. The lists are a u64 count and as many DLDataType (4 bytes),
// str and int32.

#include "payload.h"

#include <algorithm>
#include <cstring>

#include "opencl.h"

namespace rpcsys {

namespace {

class Reader
{
public:
    Reader(const char *data, size_t size) : data_(data), left_(size) {}

    uint64_t number()
    {
        uint64_t value;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }

    std::string string()
    {
        uint64_t size = number();
        return {take(size), size};
    }

    // Text that stands in messages: no byte outside of ASCII, no end of line.
    std::string name()
    {
        std::string text = string();
        if (!std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= ' ' && c <= '~'; })) refuse();
        return text;
    }

    template <typename T> std::vector<T> numbers()
    {
        uint64_t count = number();
        if (count > left_ / sizeof(T)) refuse();
        std::vector<T> values(count);
        if (count) std::memcpy(values.data(), take(count * sizeof(T)), count * sizeof(T));
        return values;
    }

    std::vector<std::string> names()
    {
        std::vector<std::string> values;
        for (uint64_t left = number(); left; left--) values.push_back(name());
        return values;
    }

private:
    const char *take(uint64_t size)
    {
        if (size > left_) refuse();
        const char *start = data_;
        data_ += size;
        left_ -= size;
        return start;
    }

    [[noreturn]] static void refuse() { fail("ValueError", "a module of kind opencl is cut off or broken"); }

    const char *data_;
    size_t left_;
};

class Writer
{
public:
    std::string bytes;

    void number(uint64_t value) { bytes.append(reinterpret_cast<const char *>(&value), sizeof value); }

    void string(const std::string &value)
    {
        number(value.size());
        bytes += value;
    }

    template <typename T> void numbers(const std::vector<T> &values)
    {
        number(values.size());
        bytes.append(reinterpret_cast<const char *>(values.data()), values.size() * sizeof(T));
    }

    void strings(const std::vector<std::string> &values)
    {
        number(values.size());
        for (const std::string &value : values) string(value);
    }
};

}  // namespace

std::string encode(const Payload &payload)
{
    Writer to;
    to.string(payload.format);
    to.number(payload.kernels.size());
    for (const auto &[key, kernel] : payload.kernels) {
        to.string(key);
        to.string(kernel.name);
        to.numbers(kernel.arguments);
        to.strings(kernel.launch_tags);
        to.numbers(kernel.extra_tags);
    }
    to.string(payload.code);
    return to.bytes;
}

Payload decode(const char *data, size_t size)
{
    Reader from(data, size);
    Payload payload;
    payload.format = from.name();
    for (uint64_t left = from.number(); left; left--) {
        std::string key = from.name();
        KernelInfo kernel;
        kernel.name = from.name();
        kernel.arguments = from.numbers<DLDataType>();
        kernel.launch_tags = from.names();
        kernel.extra_tags = from.numbers<int32_t>();
        payload.kernels[key] = std::move(kernel);
    }
    payload.code = from.string();
    return payload;
}

}  // namespace rpcsys

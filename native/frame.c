/* A received frame, as rpcsys.wire.frames.Frame. */

#include "speedups.h"

Frame *frame_new(PyTypeObject *type, const unsigned char *header, PyObject *parsed)
{
    Frame *frame = (Frame *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!frame) return NULL;
    frame->kind = header[4];
    frame->flags = header[5];
    memcpy(&frame->deadline_ms, header + 8, 4);
    memcpy(&frame->call_id, header + 12, 4);
    frame->parsed = Py_NewRef(parsed);
    return frame;
}

static void frame_dealloc(Frame *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_XDECREF(self->views);
    Py_XDECREF(self->blocks);
    Py_XDECREF(self->parsed);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static Py_ssize_t block_count(Frame *self)
{
    return !self->blocks ? 0 : PyTuple_Check(self->blocks) ? PyTuple_Size(self->blocks) : 1;
}

static PyObject *buffer(Frame *self, PyObject *number)
{
    Py_ssize_t index = PyLong_AsSsize_t(number);
    if (index == -1 && PyErr_Occurred()) return NULL;
    if (index < 0 || index >= block_count(self)) {
        PyErr_SetString(PyExc_IndexError, "the frame has no such buffer");
        return NULL;
    }
    return Py_NewRef(PyTuple_Check(self->blocks) ? PyTuple_GetItem(self->blocks, index) : self->blocks);
}

static PyObject *buffers(Frame *self, void *unused)
{
    if (!self->views) {
        Py_ssize_t count = block_count(self);
        PyObject *views = PyTuple_New(count);
        for (Py_ssize_t i = 0; views && i < count; i++) {
            PyObject *block = PyTuple_Check(self->blocks) ? PyTuple_GetItem(self->blocks, i) : self->blocks;
            PyObject *view = PyMemoryView_FromObject(block);
            if (!view || PyTuple_SetItem(views, i, view)) Py_CLEAR(views);
        }
        Py_XSETREF(self->views, views);
    }
    return self->views ? Py_NewRef(self->views) : NULL;
}

static PyMemberDef members[] = {
    {"kind", T_UBYTE, offsetof(Frame, kind), READONLY},
    {"flags", T_UBYTE, offsetof(Frame, flags), READONLY},
    {"deadline_ms", T_UINT, offsetof(Frame, deadline_ms), READONLY},
    {"call_id", T_UINT, offsetof(Frame, call_id), READONLY},
    {"parsed", T_OBJECT_EX, offsetof(Frame, parsed), READONLY},
    {NULL}};
static PyGetSetDef computed[] = {{"buffers", (getter)buffers, NULL, "The buffers as memoryviews.", NULL}, {NULL}};
static PyMethodDef methods[] = {
    {"buffer", (PyCFunction)buffer, METH_O, "The memory of one buffer, for an array."},
    {NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "A received frame."},
    {Py_tp_dealloc, frame_dealloc},
    {Py_tp_members, members},
    {Py_tp_getset, computed},
    {Py_tp_methods, methods},
    {0, NULL}};
PyType_Spec frame_spec = {
    "rpcsys.speedups.Frame", sizeof(Frame), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};

/* The type of streams: frames over the descriptor of a connected socket. */

#include "speedups.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void stream_raise_ended(Stream *self) { PyErr_SetString(self->ended, strerror(errno)); }

unsigned int stream_next_id(Stream *self)
{
    self->last_id = self->last_id == UINT32_MAX ? 1 : self->last_id + 1;
    return self->last_id;
}

static PyObject *next_id(Stream *self, PyObject *unused) { return PyLong_FromUnsignedLong(stream_next_id(self)); }

static PyObject *settle(Stream *self, PyObject *unused)
{
    self->torn = 0;
    Py_RETURN_NONE;
}

static int get_limit(PyObject *limits, const char *name, unsigned long long *limit)
{
    PyObject *value = PyObject_GetAttrString(limits, name);
    *limit = value ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"fd", "limits", "parse", "ended", "frame_type", "tunnel", NULL};
    int fd;
    PyObject *limits, *parse, *ended, *frame_type, *tunnel = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iOOOO!|O!", names, &fd, &limits, &parse, &ended, &PyType_Type,
                                     &frame_type, &PyTuple_Type, &tunnel))
        return NULL;
    State *state = state_of(type);
    if (!state) return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)frame_type, state->frame_type)) {
        PyErr_SetString(PyExc_TypeError, "frame_type must be a subclass of Frame");
        return NULL;
    }
    Stream *self = (Stream *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->state = state;
    self->fd = fd;
    self->limits = Py_NewRef(limits);
    self->parse = Py_NewRef(parse);
    self->ended = Py_NewRef(ended);
    self->frame_type = (PyTypeObject *)Py_NewRef(frame_type);
    self->heads = PyDict_New();
    self->size = SCRATCH;
    self->scratch = malloc(SCRATCH);
    if (!self->scratch) PyErr_NoMemory();
    else if (tunnel) self->tunnel = tunnel_new(state, tunnel);
    if (PyErr_Occurred() || !self->heads || !self->scratch || get_limit(limits, "max_body", &self->max_body) ||
        get_limit(limits, "max_head", &self->max_head) || get_limit(limits, "max_made", &self->max_made)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int stream_traverse(Stream *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->limits);
    Py_VISIT(self->parse);
    Py_VISIT(self->ended);
    Py_VISIT(self->frame_type);
    Py_VISIT(self->frame);
    Py_VISIT(self->heads);
    Py_VISIT(self->last_parsed);
    Py_VISIT(self->sending);
    Py_VISIT(self->late);
    return 0;
}

/* What never changes stays until the end: methods use it, and it closes no cycle. */
static int stream_clear(Stream *self)
{
    Py_CLEAR(self->last_head);
    Py_CLEAR(self->last_parsed);
    Py_CLEAR(self->sending);
    Py_CLEAR(self->late);
    return 0;
}

static void stream_dealloc(Stream *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    stream_clear(self);
    PyObject *others[] = {self->limits, self->parse, self->ended, (PyObject *)self->frame_type,
                          (PyObject *)self->frame, self->heads};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) Py_XDECREF(others[i]);
    tunnel_free(self->tunnel);
    free(self->scratch);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"fd", T_INT, offsetof(Stream, fd), 0, "The descriptor; -1 once it is closed."},
    {"last_id", T_UINT, offsetof(Stream, last_id), 0, "The id of the last call."},
    {"unread", T_PYSSIZET, offsetof(Stream, unread), READONLY, "Not 0 while received bytes are not decoded."},
    {"torn", T_BOOL, offsetof(Stream, torn), READONLY, "Whether a returned frame may be lost."},
    {"late", T_OBJECT, offsetof(Stream, late), 0, "An interruption that came with a frame."},
    {"sending", T_OBJECT, offsetof(Stream, sending), 0, "The pieces of an interrupted send."},
    {"sent", T_PYSSIZET, offsetof(Stream, sent), READONLY, "The bytes of the last send that were sent."},
    {NULL}};
static PyObject *get_held(Stream *self, void *unused) { return PyBool_FromLong(stream_held(self)); }

static PyGetSetDef computed[] = {
    {"moved", (getter)stream_moved, NULL, "Bytes that one key has encrypted, in the direction with more.", NULL},
    {"held", (getter)get_held, NULL, "Whether bytes may be here that poll does not show.", NULL},
    {"missing", (getter)stream_missing, NULL, "The bytes that the current frame lacks.", NULL}, {NULL}};
static PyMethodDef methods[] = {
    {"next_id", (PyCFunction)next_id, METH_NOARGS, "The id of the next call."},
    {"settle", (PyCFunction)settle, METH_NOARGS, "The last frame is handled."},
    {"receive", (PyCFunction)(void (*)(void))stream_receive_method, METH_FASTCALL, "Receive the next frame."},
    {"next", (PyCFunction)stream_next, METH_NOARGS, "The next frame that has been received."},
    {"tail", (PyCFunction)stream_tail, METH_NOARGS, "The last bytes that were received, as they came."},
    {"skip", (PyCFunction)stream_skip, METH_O, "Drop received frames of a kind."},
    {"send", (PyCFunction)(void (*)(void))stream_send, METH_VARARGS | METH_KEYWORDS, "Send pieces of frames."},
    {NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Frames over a connected socket."},
    {Py_tp_new, stream_new},
    {Py_tp_traverse, stream_traverse},
    {Py_tp_clear, stream_clear},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_members, members},
    {Py_tp_getset, computed},
    {Py_tp_methods, methods},
    {0, NULL}};
PyType_Spec stream_spec = {"rpcsys.speedups.Stream", sizeof(Stream), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

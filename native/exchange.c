/* A client's call that is alone on its session and like an earlier one: sent and answered in one function.

   `Exchange` belongs to a session, `FunctionBase` is the base class of its functions. Python takes over a call whose
   answer is not a plain RESULT. */

#include "speedups.h"
#include <sys/socket.h>

typedef struct {
    PyObject_HEAD
    Stream *stream;
    Lock *send_lock, *read_lock;
    PyObject *templates; /* a HeadCache */
    PyObject *idle;      /* containers: while one of them is not empty, calls are Python's */
    PyObject *sleepers;  /* threads to wake when the read lock is released, by wake() */
    PyObject *wake, *on_full, *take_over;
} Exchange;

typedef struct {
    PyObject_HEAD
    Exchange *exchange;
    PyObject *about; /* of the function, in the keys of templates */
} Function;

static int is_idle(Exchange *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(self->idle); i++)
        if (PyObject_Size(PyTuple_GetItem(self->idle, i))) return 0;
    return 1;
}

/* Both locks, if no other call is under way. */
static int enter(Exchange *self)
{
    if (!lock_acquire(self->send_lock, 0)) return 0;
    if (is_idle(self) && lock_acquire(self->read_lock, 0)) return 1;
    lock_release(self->send_lock);
    return 0;
}

/* Have Python finish a call that was begun. It releases the read lock, and the send lock if the call is not yet sent: unless
   an interruption comes first. Takes the frame. */
static PyObject *take_over(Exchange *self, unsigned int call_id, PyObject *frame, int sent)
{
    unsigned int reads = self->read_lock->releases, sends = self->send_lock->releases;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (type) PyErr_NormalizeException(&type, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    PyObject *result = PyObject_CallFunction(self->take_over, "IOOi", call_id, frame ? frame : Py_None,
                                             error ? error : Py_None, sent);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    Py_XDECREF(frame);
    if (self->read_lock->releases == reads) lock_release(self->read_lock);
    if (!sent && self->send_lock->releases == sends) {
        shutdown(self->stream->fd, SHUT_RDWR); /* in the middle of a frame */
        lock_release(self->send_lock);
    }
    return result;
}

static int leave(Exchange *self)
{
    lock_release(self->read_lock);
    if (!PyObject_Size(self->sleepers)) return 0;
    PyObject *done = PyObject_CallNoArgs(self->wake);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The template of a call with such arguments, a borrowed reference, and their buffers; NULL without an error if it is
   Python's. */
static PyObject *find(Exchange *self, PyObject *about, PyObject *args, PyObject **buffers, Py_ssize_t *buffer_count)
{
    PyObject *values[MAX_VALUES], *unused[MAX_VALUES];
    Py_ssize_t count = PyTuple_Size(args);
    if (count > MAX_VALUES) return NULL;
    for (Py_ssize_t i = 0; i < count; i++) values[i] = PyTuple_GetItem(args, i);
    return template_find(self->stream->state, self->templates, about, values, count, buffers ? buffers : unused,
                         buffer_count);
}

/* Call; the frame of the RESULT, *plain if it came from here. NULL without an error if the call is Python's, and nothing is
   sent. */
static PyObject *exchange(Exchange *self, PyObject *about, PyObject *args, int *plain)
{
    PyObject *buffers[MAX_VALUES];
    Py_ssize_t buffer_count;
    PyObject *template = find(self, about, args, buffers, &buffer_count);
    PyObject *first = template ? PyObject_GetAttr(template, self->stream->state->str_first) : NULL;
    if (!first || !enter(self)) {
        Py_XDECREF(first);
        PyErr_Clear();
        return NULL;
    }
    self->stream->torn = 0; /* no call is under way: the last frame is handled */
    unsigned int call_id = stream_next_id(self->stream), numbers[] = {0, call_id};
    int failed = stream_send_frame(self->stream, first, numbers, buffers, buffer_count, self->on_full);
    Py_DECREF(first);
    if (failed == NOT_BEGUN) { /* such as for an array that is not in C order */
        PyErr_Clear();
        lock_release(self->send_lock);
        leave(self);
        return NULL;
    }
    if (failed) return take_over(self, call_id, NULL, 0);
    lock_release(self->send_lock);
    Frame *frame = stream_receive(self->stream, 0, 0);
    if (frame) tunnel_raise_soon(self->stream);
    if (!frame || frame->kind != RESULT || frame->call_id != call_id) {
        if (frame) PyErr_CheckSignals(); /* Python would handle signals before the frame */
        return take_over(self, call_id, (PyObject *)frame, 1);
    }
    self->stream->torn = 0;
    *plain = 1;
    if (leave(self)) Py_CLEAR(frame);
    return (PyObject *)frame;
}

/* encode(about, rows): the frames of calls with rows of scalars, and the id of the first; None if Python has to encode
   them. */
static PyObject *encode(Exchange *self, PyObject *args)
{
    PyObject *about, *rows, *frames = NULL;
    if (!PyArg_ParseTuple(args, "OO!", &about, &PyList_Type, &rows)) return NULL;
    Py_ssize_t count = PyList_Size(rows), length = 0;
    unsigned int last_id = self->stream->last_id;
    if ((size_t)count > UINT32_MAX - last_id) Py_RETURN_NONE; /* ids begin again */
    PyObject **firsts = PyMem_Calloc((size_t)count + 1, sizeof *firsts);
    if (!firsts) return PyErr_NoMemory();
    Py_ssize_t found = 0;
    for (; found < count && PyTuple_Check(PyList_GetItem(rows, found)); found++) {
        Py_ssize_t buffers;
        PyObject *template = find(self, about, PyList_GetItem(rows, found), NULL, &buffers);
        if (!template || buffers) break;
        firsts[found] = PyObject_GetAttr(template, self->stream->state->str_first);
        if (!firsts[found]) break;
        length += PyBytes_Size(firsts[found]);
    }
    if (found == count && (frames = PyBytes_FromStringAndSize(NULL, length))) {
        char *at = PyBytes_AsString(frames);
        for (Py_ssize_t i = 0; i < count; i++) {
            unsigned int call_id = stream_next_id(self->stream);
            memcpy(at, PyBytes_AsString(firsts[i]), (size_t)PyBytes_Size(firsts[i]));
            memcpy(at + 12, &call_id, 4);
            at += PyBytes_Size(firsts[i]);
        }
    }
    while (found--) Py_DECREF(firsts[found]);
    PyMem_Free(firsts);
    if (frames) return Py_BuildValue("(NI)", frames, last_id + 1);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *exchange_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", "send_lock", "read_lock", "templates", "idle", "sleepers", "wake", "on_full",
                            "take_over", NULL};
    State *state = state_of(type);
    if (!state) return NULL;
    PyObject *stream, *send_lock, *read_lock, *templates, *idle, *sleepers, *wake, *on_full, *take_over;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!O!O!O!OOOO", names, state->stream_type, &stream,
                                     state->lock_type, &send_lock, state->lock_type, &read_lock, &PyDict_Type, &templates,
                                     &PyTuple_Type, &idle, &sleepers, &wake, &on_full, &take_over))
        return NULL;
    Exchange *self = (Exchange *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->stream = (Stream *)Py_NewRef(stream);
    self->send_lock = (Lock *)Py_NewRef(send_lock);
    self->read_lock = (Lock *)Py_NewRef(read_lock);
    self->templates = Py_NewRef(templates);
    self->idle = Py_NewRef(idle);
    self->sleepers = Py_NewRef(sleepers);
    self->wake = Py_NewRef(wake);
    self->on_full = Py_NewRef(on_full);
    self->take_over = Py_NewRef(take_over);
    return (PyObject *)self;
}

static int exchange_traverse(Exchange *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->stream);
    Py_VISIT(self->templates);
    Py_VISIT(self->idle);
    Py_VISIT(self->sleepers);
    Py_VISIT(self->wake);
    Py_VISIT(self->on_full);
    Py_VISIT(self->take_over);
    return 0;
}

static void exchange_dealloc(Exchange *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    PyObject *parts[] = {(PyObject *)self->stream, (PyObject *)self->send_lock, (PyObject *)self->read_lock,
                         self->templates, self->idle, self->sleepers, self->wake, self->on_full, self->take_over};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) Py_XDECREF(parts[i]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef exchange_methods[] = {
    {"encode", (PyCFunction)encode, METH_VARARGS, "The frames of calls with rows of scalars, and the id of the first."},
    {NULL}};
static PyType_Slot exchange_slots[] = {
    {Py_tp_methods, exchange_methods},
    {Py_tp_doc, "The calls of one session that are alone and like earlier ones."},
    {Py_tp_new, exchange_new},
    {Py_tp_traverse, exchange_traverse},
    {Py_tp_dealloc, exchange_dealloc},
    {0, NULL}};
PyType_Spec exchange_spec = {"rpcsys.speedups.Exchange", sizeof(Exchange), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                             exchange_slots};

/* ---------------------------------------------------------------- functions */

/* The result in a frame, by the memo of its head or by Python. Takes the frame. */
static PyObject *result_of(Function *self, State *state, PyObject *frame, int plain)
{
    PyObject *result = NULL;
    PyObject *memo = plain ? PyObject_GetAttr(((Frame *)frame)->parsed, state->str_memo) : Py_NewRef(Py_None);
    if (memo && PyCallable_Check(memo)) result = PyObject_CallFunctionObjArgs(memo, frame, NULL);
    else if (memo) result = PyObject_CallMethod((PyObject *)self, "_result_of", "O", frame);
    Py_XDECREF(memo);
    Py_DECREF(frame);
    return result;
}

static PyObject *function_call(Function *self, PyObject *args, PyObject *keywords)
{
    if (self->exchange && (!keywords || !PyDict_Size(keywords))) {
        int plain = 0;
        Exchange *bound = (Exchange *)Py_NewRef((PyObject *)self->exchange); /* another thread may bind another one */
        PyObject *frame = exchange(bound, self->about, args, &plain);
        PyObject *result = frame ? result_of(self, bound->stream->state, frame, plain) : NULL;
        Py_DECREF(bound);
        if (result || PyErr_Occurred()) return result;
    }
    PyObject *method = PyObject_GetAttrString((PyObject *)self, "_call");
    PyObject *result = method ? PyObject_Call(method, args, keywords) : NULL;
    Py_XDECREF(method);
    return result;
}

static PyObject *bind_exchange(Function *self, PyObject *args)
{
    PyObject *exchange, *about;
    if (!PyArg_ParseTuple(args, "OO", &exchange, &about)) return NULL;
    PyTypeObject *type = Py_TYPE(exchange);
    if (exchange != Py_None && PyType_GetSlot(type, Py_tp_new) != (void *)exchange_new) {
        PyErr_SetString(PyExc_TypeError, "an Exchange is needed");
        return NULL;
    }
    Py_XSETREF(self->exchange, exchange == Py_None ? NULL : (Exchange *)Py_NewRef(exchange));
    Py_XSETREF(self->about, Py_NewRef(about));
    Py_RETURN_NONE;
}

static int function_traverse(Function *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->exchange);
    Py_VISIT(self->about);
    return 0;
}

static int function_clear(Function *self)
{
    Py_CLEAR(self->exchange);
    Py_CLEAR(self->about);
    return 0;
}

static void function_dealloc(Function *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    function_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef function_methods[] = {
    {"_bind", (PyCFunction)bind_exchange, METH_VARARGS, "Set the Exchange, or None, and what the function adds to keys."}, {NULL}};
static PyType_Slot function_slots[] = {
    {Py_tp_doc, "The base of functions on a device. A subclass has _call and _result_of."},
    {Py_tp_call, function_call},
    {Py_tp_methods, function_methods},
    {Py_tp_traverse, function_traverse},
    {Py_tp_clear, function_clear},
    {Py_tp_dealloc, function_dealloc},
    {0, NULL}};
PyType_Spec function_spec = {"rpcsys.speedups.FunctionBase", sizeof(Function), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, function_slots};

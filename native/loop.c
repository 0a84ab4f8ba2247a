/* A server's calls that follow from their head alone: received, run and answered in one function.

   Several calls of one read are run in a row, and their answers are held to be sent together, as long as each of them is
   known to be quick. All else goes to Python. */

#include "speedups.h"
#include <errno.h>
#include <sys/socket.h>
#include <time.h>

#define LARGE (1u << 20)   /* after a call with more bytes, its CANCEL may be here */
#define STRETCH (2u << 20) /* Python sends longer replies, and reads in between */
#define BATCH 16           /* replies that are sent together */
#define QUICK_NS 100000LL  /* a call that took no longer is quick */
#define POLL_NS 1000000LL  /* between two polls of the socket for a CANCEL during a series of quick calls */

typedef struct {
    PyObject_HEAD
    /* What the session's two threads share. */
    PyObject *call;          /* the frame of the call that runs */
    unsigned long long turn; /* odd while a call runs */
    char asleep, reading;    /* the watching thread: waits for a call; reads frames */
    Stream *stream;
    Lock *send_lock, *read_lock;
    PyObject *templates; /* a HeadCache of results */
    PyObject *waiting;   /* containers: while one of them is not empty, frames are Python's */
    PyObject *held;      /* a list of replies that wait to be sent with others, by flush() */
    PyObject *quick;     /* a set of the functions whose calls are quick */
    PyObject *idle;      /* `call` while none runs */
    PyObject *wake, *nudge, *finish, *flush, *on_full;
    long long polled;
} Loop;

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Nanoseconds as the microseconds that a RESULT says: rounded up, because 0 says nothing. */
static unsigned int took_us(long long took_ns)
{
    return took_ns / 1000 < UINT32_MAX ? (unsigned int)(took_ns / 1000) + 1 : UINT32_MAX;
}

static int call_hook(PyObject *hook)
{
    PyObject *done = PyObject_CallNoArgs(hook);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int something_waits(Loop *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(self->waiting); i++)
        if (PyObject_Size(PyTuple_GetItem(self->waiting, i))) return 1;
    return 0;
}

/* ---------------------------------------------------------------- calls in a row */

/* Whether scratch holds whole calls without a body and nothing else, such as a CANCEL of one of them. */
static int only_calls(Stream *stream)
{
    Py_ssize_t at = stream->start;
    while (stream->unread - at >= HEADER_BYTES) {
        uint32_t head_bytes;
        uint64_t body_bytes;
        const char *header = stream->scratch + at;
        memcpy(&head_bytes, header, 4);
        memcpy(&body_bytes, header + 16, 8);
        if (header[4] != CALL || body_bytes || head_bytes > REMEMBERED_BYTES) return 0;
        at += HEADER_BYTES + (Py_ssize_t)head_bytes;
    }
    return at == stream->unread;
}

/* Whether nothing has come from the client since the last poll, for which there is one at most each POLL_NS. */
static int nothing_came(Loop *self)
{
    long long now = now_ns();
    char byte;
    if (now - self->polled <= POLL_NS) return 1;
    self->polled = now;
    if (stream_held(self->stream)) return 0;
    return recv(self->stream->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* The function of a call if it is known to be quick, a borrowed reference; NULL without an error if not. */
static PyObject *quick_target(Loop *self, Frame *frame)
{
    PyObject *head = PyObject_GetAttr(frame->parsed, self->stream->state->str_head);
    PyObject *target = head && PyDict_Check(head) ? PyDict_GetItemString(head, "f") : NULL;
    Py_XDECREF(head); /* the frame keeps it */
    if (target && PyUnicode_Check(target) && PySet_Contains(self->quick, target) == 1) return target;
    PyErr_Clear();
    return NULL;
}

/* Hold one reply. 0, or -1 with an error. */
static int hold(Loop *self, PyObject *first, const unsigned int numbers[2])
{
    PyObject *reply = PyBytes_FromStringAndSize(PyBytes_AsString(first), PyBytes_Size(first));
    if (!reply) return -1;
    memcpy(PyBytes_AsString(reply) + 8, numbers, 8);
    int failed = PyList_Append(self->held, reply);
    Py_DECREF(reply);
    return failed || (PyList_Size(self->held) >= BATCH && call_hook(self->flush)) ? -1 : 0;
}

/* ---------------------------------------------------------------- one call */

/* Whether a result's memory is sent as it is. The template has its type and shape, but not the order of its elements. */
static int in_order(PyObject *array)
{
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)) {
        PyErr_Clear();
        return 0;
    }
    PyBuffer_Release(&view);
    return 1;
}

/* The template of a result, a new reference; NULL without an error if its reply is Python's. */
static PyObject *reply_template(Loop *self, PyObject *result, PyObject **buffer, Py_ssize_t *count)
{
    State *state = self->stream->state;
    PyObject *template = template_find(state, self->templates, Py_None, &result, 1, buffer, count);
    PyObject *first = template ? PyObject_GetAttr(template, state->str_first) : NULL;
    uint64_t body = 0;
    if (first) memcpy(&body, PyBytes_AsString(first) + 16, 8); /* as its header has it */
    if (body > STRETCH || (first && *count && !in_order(*buffer))) Py_CLEAR(first);
    return first;
}

/* Have Python finish a call: its result, or the error that is set, is not plain. 0, or -1 with an error. */
static int finish(Loop *self, Frame *frame, PyObject *result, unsigned int took)
{
    PyObject *type = NULL, *error = NULL, *trace = NULL;
    if (!result) {
        PyErr_Fetch(&type, &error, &trace);
        PyErr_NormalizeException(&type, &error, &trace);
        if (trace) PyException_SetTraceback(error, trace);
    }
    PyObject *done = PyObject_CallFunction(self->finish, "OOOI", (PyObject *)frame, result ? result : Py_None,
                                           error ? error : Py_None, took);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int send_reply(Loop *self, PyObject *first, const unsigned int numbers[2], PyObject *const *buffer,
                      Py_ssize_t count)
{
    if (PyList_Size(self->held) && call_hook(self->flush)) return -1;
    if (lock_acquire(self->send_lock, -1) < 0) return -1;
    int failed = stream_send_frame(self->stream, first, numbers, buffer, count, self->on_full);
    lock_release(self->send_lock);
    return failed;
}

/* Run a call, and answer it. `target`: its function, if it is one of several quick ones. Takes the frame. 0, or -1 with
   an error. */
static int run(Loop *self, Frame *frame, PyObject *function, PyObject *target)
{
    Py_XSETREF(self->call, Py_NewRef((PyObject *)frame));
    self->turn++;
    int failed = self->asleep && call_hook(self->wake);
    long long began = now_ns();
    PyObject *result = failed ? NULL : PyObject_CallFunctionObjArgs(function, (PyObject *)frame, NULL);
    long long took_ns = now_ns() - began;
    unsigned int numbers[] = {took_us(took_ns), frame->call_id};
    PyObject *buffer = NULL;
    Py_ssize_t count = 0;
    PyObject *first = result ? reply_template(self, result, &buffer, &count) : NULL;
    if (first) {
        self->turn++;
        failed = self->reading && call_hook(self->nudge);
    } else failed = finish(self, frame, result, numbers[0]);
    /* Freed now, the memory of its arrays is reused by the next call while the CPU still caches it. */
    Py_DECREF(frame);
    Py_XSETREF(self->call, Py_NewRef(self->idle));
    int quick = target && took_ns <= QUICK_NS;
    if (target && !quick) failed |= PySet_Discard(self->quick, target) < 0;
    if (first && !failed)
        failed = quick && !count ? hold(self, first, numbers) : send_reply(self, first, numbers, &buffer, count);
    Py_XDECREF(first);
    Py_XDECREF(result);
    return failed ? -1 : 0;
}

/* ---------------------------------------------------------------- the loop */

/* The function that runs a plain call, a new reference, and its target if it is one of several; NULL without an error if
   the frame is Python's. */
static PyObject *function_of(Loop *self, Frame *frame, PyObject **target)
{
    Stream *stream = self->stream;
    *target = NULL;
    if (frame->kind != CALL || stream->last_bytes > LARGE) return NULL;
    if (stream->unread || PyList_Size(self->held)) {
        if (!only_calls(stream) || !nothing_came(self)) return NULL;
        *target = quick_target(self, frame);
        if (!*target) return NULL;
    }
    PyObject *memo = PyObject_GetAttr(frame->parsed, stream->state->str_memo);
    if (memo && PyCallable_Check(memo)) return memo;
    Py_XDECREF(memo);
    PyErr_Clear();
    return NULL;
}

/* After a call. The other thread gives the lock back at once, and a signal does not end this wait. */
static void lock_again(Loop *self)
{
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(self->read_lock->lock, WAIT_LOCK);
    Py_END_ALLOW_THREADS
    self->read_lock->locked = 1;
}

static PyObject *loop_receive(Loop *self, PyObject *unused)
{
    do {
        Frame *frame = stream_receive(self->stream, 0, 0);
        if (frame) tunnel_raise_soon(self->stream);
        if (!frame && PyErr_Occurred()) return NULL;
        if (!frame) break;
        PyObject *target, *function = function_of(self, frame, &target);
        if (!function) return (PyObject *)frame;
        Py_XINCREF(target);
        lock_release(self->read_lock);
        int failed = run(self, frame, function, target);
        Py_DECREF(function);
        Py_XDECREF(target);
        if (!failed && !self->stream->unread && PyList_Size(self->held)) failed = call_hook(self->flush);
        if (lock_acquire(self->read_lock, 0) <= 0) lock_again(self);
        if (failed) return NULL;
    } while (!something_waits(self));
    Py_RETURN_NONE;
}

static PyObject *loop_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", "send_lock", "read_lock", "templates", "waiting", "held", "quick", "idle",
                            "wake", "nudge", "finish", "flush", "on_full", NULL};
    State *state = state_of(type);
    if (!state) return NULL;
    PyObject *stream, *send_lock, *read_lock, *templates, *waiting, *held, *quick, *idle, *wake, *nudge, *finish, *flush,
        *on_full;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!O!O!O!O!O!OOOOOO", names, state->stream_type, &stream,
                                     state->lock_type, &send_lock, state->lock_type, &read_lock, &PyDict_Type, &templates,
                                     &PyTuple_Type, &waiting, &PyList_Type, &held, &PySet_Type, &quick, &idle, &wake,
                                     &nudge, &finish, &flush, &on_full))
        return NULL;
    Loop *self = (Loop *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->call = Py_NewRef(idle);
    self->stream = (Stream *)Py_NewRef(stream);
    self->send_lock = (Lock *)Py_NewRef(send_lock);
    self->read_lock = (Lock *)Py_NewRef(read_lock);
    self->templates = Py_NewRef(templates);
    self->waiting = Py_NewRef(waiting);
    self->held = Py_NewRef(held);
    self->quick = Py_NewRef(quick);
    self->idle = Py_NewRef(idle);
    self->wake = Py_NewRef(wake);
    self->nudge = Py_NewRef(nudge);
    self->finish = Py_NewRef(finish);
    self->flush = Py_NewRef(flush);
    self->on_full = Py_NewRef(on_full);
    return (PyObject *)self;
}

static int loop_traverse(Loop *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    PyObject *all[] = {self->call, (PyObject *)self->stream, self->templates, self->waiting, self->held, self->quick,
                       self->idle, self->wake, self->nudge, self->finish, self->flush, self->on_full};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) Py_VISIT(all[i]);
    return 0;
}

static int loop_clear(Loop *self)
{
    Py_CLEAR(self->call); /* all else never changes, and closes no cycle */
    return 0;
}

static void loop_dealloc(Loop *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    loop_clear(self);
    PyObject *others[] = {(PyObject *)self->stream, (PyObject *)self->send_lock, (PyObject *)self->read_lock,
                          self->templates, self->waiting, self->held, self->quick, self->idle, self->wake,
                          self->nudge, self->finish, self->flush, self->on_full};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) Py_XDECREF(others[i]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"call", T_OBJECT, offsetof(Loop, call), 0, "The frame of the call that runs."},
    {"turn", T_ULONGLONG, offsetof(Loop, turn), 0, "Odd while a call runs."},
    {"asleep", T_BOOL, offsetof(Loop, asleep), 0, "Whether the watching thread waits for a call."},
    {"reading", T_BOOL, offsetof(Loop, reading), 0, "Whether the watching thread reads frames."},
    {NULL}};
static PyMethodDef methods[] = {
    {"receive", (PyCFunction)loop_receive, METH_NOARGS,
     "The next frame for Python, or None. Calls that follow from their head alone are answered before."},
    {NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "The calls of a session that follow from their head alone."},
    {Py_tp_new, loop_new},
    {Py_tp_traverse, loop_traverse},
    {Py_tp_clear, loop_clear},
    {Py_tp_dealloc, loop_dealloc},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {0, NULL}};
PyType_Spec loop_spec = {"rpcsys.speedups.CallLoop", sizeof(Loop), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

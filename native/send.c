/* Sends frames. A short frame is sent with the interpreter lock held: on a socket with space that takes no longer than
   the lock's release. */

#include "speedups.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define SHORT (16 << 10)
#define PIECES 64       /* pieces without an allocation */
#define MAX_PIECES 1000 /* one sendmsg takes at most 1,024 buffers (UIO_MAXIOV) */

typedef struct {
    struct iovec *pieces;
    Py_ssize_t count;
    size_t total;
} Rest;

/* Remove `sent` bytes from the front. */
static void advance(Rest *rest, size_t sent)
{
    rest->total -= sent;
    while (rest->count && sent >= rest->pieces->iov_len) {
        sent -= rest->pieces->iov_len;
        rest->pieces++;
        rest->count--;
    }
    if (sent) {
        rest->pieces->iov_base = (char *)rest->pieces->iov_base + sent;
        rest->pieces->iov_len -= sent;
    }
}

static ssize_t send_once(Stream *self, const Rest *rest, int flags)
{
    if (rest->count == 1) return send(self->fd, rest->pieces->iov_base, rest->pieces->iov_len, flags);
    struct msghdr message = {0};
    message.msg_iov = rest->pieces;
    message.msg_iovlen = (size_t)(rest->count < MAX_PIECES ? rest->count : MAX_PIECES);
    return sendmsg(self->fd, &message, flags);
}

/* After a failed send: 0 to go on, -1 with an error. */
static int send_failed(Stream *self, PyObject *on_full, int *is_short)
{
    if (errno == EINTR) return PyErr_CheckSignals();
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
        stream_raise_ended(self);
        return -1;
    }
    if (*is_short) { /* the socket is full: the system may wait from now on */
        *is_short = 0;
        return 0;
    }
    if (!on_full) return PyErr_CheckSignals();
    PyObject *done = PyObject_CallNoArgs(on_full);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Send all. `on_full` is called while the peer reads nothing: at once, or if `patient` after the system has waited. */
static int send_all(Stream *self, Rest *rest, PyObject *on_full, int patient)
{
    int is_short = rest->total <= SHORT, never = on_full && !patient;
    self->sent = 0;
    while (rest->count || tunnel_unsent(self)) {
        ssize_t sent;
        if (self->tunnel)
            sent = tunnel_send(self, rest->pieces, rest->count,
                               MSG_NOSIGNAL | (is_short || never ? MSG_DONTWAIT : 0));
        else if (is_short) sent = send_once(self, rest, MSG_NOSIGNAL | MSG_DONTWAIT);
        else {
            Py_BEGIN_ALLOW_THREADS
            sent = send_once(self, rest, MSG_NOSIGNAL | (never ? MSG_DONTWAIT : 0));
            Py_END_ALLOW_THREADS
        }
        if (sent < 0) {
            if (PyErr_Occurred()) return -1;
            if (send_failed(self, on_full, &is_short)) return -1;
            continue;
        }
        self->sent += sent;
        advance(rest, (size_t)sent);
        if (tunnel_interrupted(self)) return -1;
        if (rest->count && PyErr_CheckSignals()) return -1; /* a signal ends a system call that has sent some, too */
    }
    return 0;
}

/* ---------------------------------------------------------------- buffers */

typedef struct {
    struct iovec own_pieces[PIECES + 1], *pieces;
    Py_buffer own_views[PIECES], *views;
    Py_ssize_t held; /* views */
    Rest rest;
} Gathered;

static void release(Gathered *all)
{
    while (all->held) PyBuffer_Release(&all->views[--all->held]);
    if (all->pieces != all->own_pieces) free(all->pieces);
    if (all->views != all->own_views) free(all->views);
}

static void add(Rest *rest, void *base, size_t length)
{
    if (!length) return;
    rest->pieces[rest->count].iov_base = base;
    rest->pieces[rest->count++].iov_len = length;
    rest->total += length;
}

/* The memory of the buffers, behind `length` bytes at `first`. 0; -1 with an error, and nothing is held. */
static int gather(Gathered *all, char *first, size_t length, PyObject *const *buffers, Py_ssize_t count)
{
    all->pieces = count > PIECES ? malloc((size_t)(count + 1) * sizeof *all->pieces) : all->own_pieces;
    all->views = count > PIECES ? malloc((size_t)count * sizeof *all->views) : all->own_views;
    all->held = 0;
    all->rest = (Rest){all->pieces, 0, 0};
    if (!all->pieces || !all->views) {
        PyErr_NoMemory();
        release(all);
        return -1;
    }
    add(&all->rest, first, length);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_buffer *view = &all->views[all->held];
        if (PyObject_GetBuffer(buffers[i], view, PyBUF_SIMPLE)) {
            release(all);
            return -1;
        }
        all->held++;
        add(&all->rest, view->buf, (size_t)view->len);
    }
    return 0;
}

/* ---------------------------------------------------------------- methods */

/* Remember what an interrupted send has to resume: `first` and the buffers. The error stays set. */
static void keep_sending(Stream *self, const char *first, Py_ssize_t length, PyObject *const *buffers, Py_ssize_t count)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *own = PyBytes_FromStringAndSize(first, length);
    PyObject *pieces = own ? PyTuple_New(1 + count) : NULL;
    if (!pieces) shutdown(self->fd, SHUT_RDWR); /* nothing can complete the frame */
    for (Py_ssize_t i = 0; pieces && i <= count; i++) PyTuple_SetItem(pieces, i, Py_NewRef(i ? buffers[i - 1] : own));
    Py_XDECREF(own);
    Py_XSETREF(self->sending, pieces);
    PyErr_Restore(type, value, trace);
}

int stream_send_frame(Stream *self, PyObject *first, const unsigned int numbers[2], PyObject *const *buffers,
                      Py_ssize_t count, PyObject *on_full)
{
    char own[HEADER_BYTES + REMEMBERED_BYTES];
    Py_ssize_t length = PyBytes_Size(first); /* of a head that is remembered */
    if (length < HEADER_BYTES || (size_t)length > sizeof own) {
        PyErr_SetString(PyExc_ValueError, "no template of a frame");
        return NOT_BEGUN;
    }
    memcpy(own, PyBytes_AsString(first), (size_t)length);
    memcpy(own + 8, numbers, 8);
    Gathered all;
    if (gather(&all, own, (size_t)length, buffers, count)) return NOT_BEGUN;
    int result = send_all(self, &all.rest, on_full, 1);
    release(&all);
    if (result) keep_sending(self, own, length, buffers, count);
    return result;
}

PyObject *stream_send(Stream *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"pieces", "on_full", "patient", "begun", NULL};
    PyObject *sequence, *on_full = Py_None, *begun = Py_None;
    int patient = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|OpO", names, &sequence, &on_full, &patient, &begun)) return NULL;
    PyObject *pieces = PySequence_Tuple(sequence);
    if (!pieces) return NULL;
    Py_ssize_t count = PyTuple_Size(pieces);
    PyObject **items = PyMem_Malloc((size_t)(count + 1) * sizeof *items);
    Gathered all;
    int failed = 1;
    for (Py_ssize_t i = 0; items && i < count; i++) items[i] = PyTuple_GetItem(pieces, i);
    if (!items) PyErr_NoMemory();
    else if (!gather(&all, NULL, 0, items, count)) {
        self->sent = 0;
        PyObject *done = begun == Py_None ? Py_NewRef(Py_None) : PyObject_CallNoArgs(begun);
        failed = !done || send_all(self, &all.rest, on_full == Py_None ? NULL : on_full, patient);
        Py_XDECREF(done);
        release(&all);
        if (failed) keep_sending(self, NULL, 0, items, count);
        else Py_CLEAR(self->sending);
    }
    PyMem_Free(items);
    Py_DECREF(pieces);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

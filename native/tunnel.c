/* TLS between a stream and its socket, by Python's ssl: as rpcsys/secure_stream.py does it.

   Only whole records are given to OpenSSL, so that each byte can be counted from outside: handlers of signals run inside
   its calls, and one that raises takes the result with it. No handler runs between two lines here but in a call. */

#include "speedups.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#define RECORD_HEADER 5
#define RECORD_OVERHEAD 22 /* header, type of the content, tag */
#define MAX_RECORD ((16 << 10) + 256)
#define RECORD (16 << 10) /* pieces are joined up to this */
#define BEFORE (64 << 10)
#define STRETCH (256 << 10)
#define TAIL 2048
#define TRIES 100

struct Tunnel {
    PyObject *read, *write, *pending; /* of OpenSSL's object */
    PyObject *arrived, *leaving;      /* ciphertext before and behind it */
    PyObject *put, *take;             /* their methods */
    PyObject *want_read, *error, *reason;
    Lock *lock; /* OpenSSL's object is for one thread at a time */
    char *cipher; /* received; OpenSSL has cipher[:begin] */
    Py_ssize_t begin, end;
    char more;       /* OpenSSL may hold decrypted bytes */
    PyObject *taken; /* ciphertext that is being sent, and how much of it is */
    Py_ssize_t sent;
    long long received, encrypted; /* bytes in all */
    PyObject *interruption; /* raised by a handler while bytes came or went; they count */
};

/* ---------------------------------------------------------------- new and gone */

void tunnel_free(Tunnel *self)
{
    if (!self) return;
    PyObject *parts[] = {self->read, self->write, self->pending, self->arrived, self->leaving, self->put, self->take,
                         self->want_read, self->error, self->reason, (PyObject *)self->lock, self->taken,
                         self->interruption};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) Py_XDECREF(parts[i]);
    free(self->cipher);
    free(self);
}

Tunnel *tunnel_new(State *state, PyObject *parts)
{
    PyObject *tls, *arrived, *leaving, *want_read, *error, *reason;
    const char *left;
    Py_ssize_t length;
    int more;
    if (!PyArg_ParseTuple(parts, "OOOOOOpy#", &tls, &arrived, &leaving, &want_read, &error, &reason, &more, &left,
                          &length))
        return NULL;
    Tunnel *self = calloc(1, sizeof *self);
    char *cipher = malloc(BEFORE + STRETCH);
    if (!self || !cipher || length > BEFORE) {
        free(self);
        free(cipher);
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(cipher, left, (size_t)length);
    self->cipher = cipher;
    self->end = length;
    self->more = (char)more;
    self->read = PyObject_GetAttrString(tls, "read");
    self->write = PyObject_GetAttrString(tls, "write");
    self->pending = PyObject_GetAttrString(tls, "pending");
    self->put = PyObject_GetAttrString(arrived, "write");
    self->take = PyObject_GetAttrString(leaving, "read");
    self->arrived = Py_NewRef(arrived);
    self->leaving = Py_NewRef(leaving);
    self->want_read = Py_NewRef(want_read);
    self->error = Py_NewRef(error);
    self->reason = Py_NewRef(reason);
    self->lock = (Lock *)PyObject_CallNoArgs((PyObject *)state->lock_type);
    if (self->read && self->write && self->pending && self->put && self->take && self->lock) return self;
    tunnel_free(self);
    return NULL;
}

/* ---------------------------------------------------------------- calls */

/* Call with memory, which nothing uses afterwards: a traceback may keep the view. `number` before it, unless negative. */
static PyObject *with_memory(PyObject *function, Py_ssize_t number, char *memory, Py_ssize_t length, int flags)
{
    PyObject *type, *value, *trace;
    PyObject *view = PyMemoryView_FromMemory(memory, length, flags);
    PyObject *first = number < 0 ? NULL : PyLong_FromSsize_t(number);
    PyObject *result = NULL;
    if (view && (first || number < 0))
        result = first ? PyObject_CallFunctionObjArgs(function, first, view, NULL)
                       : PyObject_CallFunctionObjArgs(function, view, NULL);
    Py_XDECREF(first);
    PyErr_Fetch(&type, &value, &trace);
    PyObject *released = view ? PyObject_CallMethod(view, "release", NULL) : NULL;
    Py_XDECREF(released);
    Py_XDECREF(view);
    PyErr_Restore(type, value, trace);
    return result;
}

/* The bytes in a BIO. */
static Py_ssize_t in(PyObject *bio)
{
    PyObject *pending = PyObject_GetAttrString(bio, "pending");
    Py_ssize_t count = pending ? PyLong_AsSsize_t(pending) : 0;
    Py_XDECREF(pending);
    return count;
}

/* The error that is set, taken. */
static PyObject *taken_error(void)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return error;
}

/* The decrypted bytes that OpenSSL holds. An interruption waits: nothing may be done without this number. */
static Py_ssize_t decrypted(Tunnel *self)
{
    PyObject *pending = NULL;
    for (int i = 0; i < TRIES && !pending; i++) {
        pending = PyObject_CallNoArgs(self->pending);
        if (!pending) Py_XSETREF(self->interruption, taken_error());
    }
    Py_ssize_t count = pending ? PyLong_AsSsize_t(pending) : 0;
    Py_XDECREF(pending);
    return count;
}

/* Raise `Ended` for the error of OpenSSL that is set. */
static void raise_ended(Stream *stream)
{
    PyObject *error = taken_error();
    PyObject *text = error ? PyObject_CallFunctionObjArgs(stream->tunnel->reason, error, NULL) : NULL;
    Py_XDECREF(error);
    if (!text) return;
    PyErr_SetObject(stream->ended, text);
    Py_DECREF(text);
}

int tunnel_interrupted(Stream *stream)
{
    Tunnel *self = stream->tunnel;
    if (!self || !self->interruption) return 0;
    PyObject *error = self->interruption;
    self->interruption = NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return 1;
}

static int raise_now(void *error)
{
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)error), error);
    Py_DECREF((PyObject *)error);
    return -1;
}

void tunnel_raise_soon(Stream *stream)
{
    Tunnel *self = stream->tunnel;
    if (!self || !self->interruption) return;
    if (!Py_AddPendingCall(raise_now, self->interruption)) self->interruption = NULL;
}

PyObject *tunnel_late(Stream *stream)
{
    PyObject *error = stream->tunnel ? stream->tunnel->interruption : NULL;
    if (error) stream->tunnel->interruption = NULL;
    return error;
}

/* ---------------------------------------------------------------- receiving */

int stream_held(Stream *stream)
{
    Tunnel *self = stream->tunnel;
    return self && (self->more || in(self->arrived) > 0);
}

PyObject *stream_moved(Stream *stream, void *unused)
{
    Tunnel *self = stream->tunnel;
    if (!self) return PyLong_FromLong(0);
    return PyLong_FromLongLong(self->received > self->encrypted ? self->received : self->encrypted);
}

PyObject *stream_tail(Stream *stream, PyObject *unused)
{
    Tunnel *self = stream->tunnel;
    if (!self) return PyBytes_FromStringAndSize(NULL, 0);
    Py_ssize_t start = self->end > TAIL ? self->end - TAIL : 0;
    return PyBytes_FromStringAndSize(self->cipher + start, self->end - start);
}

/* Where the last whole record ends; -1 with an error where one should begin and none does. */
static Py_ssize_t whole(Stream *stream)
{
    Tunnel *self = stream->tunnel;
    Py_ssize_t at = self->begin;
    while (self->end - at >= RECORD_HEADER) {
        const unsigned char *header = (unsigned char *)self->cipher + at;
        int size = header[3] << 8 | header[4];
        if (header[0] < 20 || header[0] > 23 || size > MAX_RECORD) {
            if (at > self->begin) break;
            PyErr_SetString(stream->ended, "what was received is no TLS");
            return -1;
        }
        if (self->end - at < RECORD_HEADER + size) break;
        at += RECORD_HEADER + size;
    }
    return at;
}

/* Receive ciphertext once, and give OpenSSL the whole records. As receive_bytes. */
static ssize_t fetch(Stream *stream, int flags)
{
    Tunnel *self = stream->tunnel;
    if (whole(stream) < 0) return 0;
    if (self->end > BEFORE) { /* what was sent in the clear may stand behind a part of a record: some bytes are kept */
        Py_ssize_t start = self->begin > TAIL ? self->begin - TAIL : 0;
        memmove(self->cipher, self->cipher + start, (size_t)(self->end - start));
        self->begin -= start;
        self->end -= start;
    }
    ssize_t count = socket_receive(stream, self->cipher + self->end, BEFORE + STRETCH - self->end, flags);
    if (count <= 0) return count;
    self->end += count;
    self->received += count;
    Py_ssize_t until = whole(stream);
    if (until <= self->begin) return until < 0 ? 0 : count;
    PyObject *done = with_memory(self->put, -1, self->cipher + self->begin, until - self->begin, PyBUF_READ);
    Py_XDECREF(done);
    if (!done) return 0;
    self->begin = until;
    return count;
}

/* A read has failed. The bytes that it has decrypted nevertheless: a handler has raised, and neither end pads records. */
static Py_ssize_t uncounted(Stream *stream, Py_ssize_t arrived, Py_ssize_t held)
{
    Tunnel *self = stream->tunnel;
    if (PyErr_ExceptionMatches(self->want_read)) {
        PyErr_Clear();
        self->more = 0;
        return 0;
    }
    if (PyErr_ExceptionMatches(self->error)) {
        raise_ended(stream);
        return 0;
    }
    Py_XSETREF(self->interruption, taken_error());
    Py_ssize_t took = arrived - in(self->arrived);
    Py_ssize_t count = (took ? took - RECORD_OVERHEAD : held) - decrypted(self);
    return count > 0 ? count : 0;
}

/* Decrypt what OpenSSL holds, as far as there is space. The number of bytes; 0 with an error, or if there are none. */
static Py_ssize_t decrypt(Stream *stream, char *to, Py_ssize_t space)
{
    Tunnel *self = stream->tunnel;
    Py_ssize_t total = 0;
    if (lock_acquire(self->lock, -1) <= 0) return 0;
    while (total < space && !self->interruption) {
        Py_ssize_t arrived = in(self->arrived), held = self->more ? decrypted(self) : 0, left = space - total;
        if (!self->more && arrived <= 0) break;
        self->more = 1;
        PyObject *read = with_memory(self->read, left, to + total, left, PyBUF_WRITE);
        Py_ssize_t count = read ? PyLong_AsSsize_t(read) : uncounted(stream, arrived, held);
        Py_XDECREF(read);
        if (read && !count && !total) PyErr_SetString(stream->ended, "closed by the other end");
        if (read) self->more = count == left;
        if (count <= 0) break;
        total += count;
    }
    lock_release(self->lock);
    if (total) PyErr_Clear(); /* what came before the end is whole; the next read raises it */
    else if (!PyErr_Occurred()) tunnel_interrupted(stream);
    return total;
}

ssize_t tunnel_receive(Stream *stream, char *to, Py_ssize_t space, int flags)
{
    for (;;) {
        while (!stream_held(stream)) {
            ssize_t count = fetch(stream, flags);
            if (count <= 0) return count;
        }
        Py_ssize_t count = decrypt(stream, to, space);
        if (count || PyErr_Occurred()) return count;
    }
}

/* ---------------------------------------------------------------- sending */

int tunnel_unsent(Stream *stream) { return stream->tunnel && stream->tunnel->taken; }

/* Send the ciphertext. 0 when all is sent; -1 for errno, or with an error. */
static int flush(Stream *stream, int flags)
{
    Tunnel *self = stream->tunnel;
    Py_ssize_t length = PyBytes_Size(self->taken);
    const char *data = PyBytes_AsString(self->taken);
    while (self->sent < length) {
        ssize_t sent;
        size_t left = (size_t)(length - self->sent);
        if (flags & MSG_DONTWAIT) sent = send(stream->fd, data + self->sent, left, flags);
        else {
            Py_BEGIN_ALLOW_THREADS
            sent = send(stream->fd, data + self->sent, left, flags);
            Py_END_ALLOW_THREADS
        }
        if (sent < 0) return -1;
        self->sent += sent;
        if (self->sent < length && PyErr_CheckSignals()) return -1;
    }
    Py_CLEAR(self->taken);
    return 0;
}

/* Encrypt `length` bytes, with the lock. 0; -1 with an error, and nothing is encrypted; an interruption may wait. */
static int encrypt(Stream *stream, char *data, Py_ssize_t length)
{
    Tunnel *self = stream->tunnel;
    Py_ssize_t before = in(self->leaving);
    PyObject *done = with_memory(self->write, -1, data, length, PyBUF_READ);
    Py_XDECREF(done);
    if (!done && PyErr_ExceptionMatches(self->error)) raise_ended(stream);
    else if (!done) {
        PyObject *error = taken_error();
        if (in(self->leaving) != before) Py_XSETREF(self->interruption, error);
        else {
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
            Py_DECREF(error);
        }
    }
    if (PyErr_Occurred()) return -1;
    self->encrypted += length;
    return 0;
}

/* Encrypt from `done` bytes on, as much as makes one record of small pieces, or a stretch of a large one. The number of
   bytes; 0 at the end, or with an error. */
static size_t encrypt_some(Stream *stream, const struct iovec *pieces, Py_ssize_t count, size_t done)
{
    char own[RECORD], *data = own;
    size_t length = 0;
    while (count && done >= pieces->iov_len) {
        done -= pieces->iov_len;
        pieces++;
        count--;
    }
    if (!count) return 0;
    if (count == 1 || pieces->iov_len - done >= RECORD) {
        data = (char *)pieces->iov_base + done;
        length = pieces->iov_len - done < STRETCH ? pieces->iov_len - done : STRETCH;
    } else
        for (; count && length < RECORD; pieces++, count--, done = 0) {
            size_t part = pieces->iov_len - done < RECORD - length ? pieces->iov_len - done : RECORD - length;
            memcpy(own + length, (char *)pieces->iov_base + done, part);
            length += part;
        }
    return encrypt(stream, data, (Py_ssize_t)length) ? 0 : length;
}

ssize_t tunnel_send(Stream *stream, const struct iovec *pieces, Py_ssize_t count, int flags)
{
    Tunnel *self = stream->tunnel;
    size_t done = 0, more = 1;
    if (self->taken && flush(stream, flags)) return -1;
    if (!count) return 0;
    if (lock_acquire(self->lock, -1) <= 0) return -1;
    while (more && done < STRETCH && !self->interruption) done += more = encrypt_some(stream, pieces, count, done);
    PyObject *error = PyErr_Occurred() ? taken_error() : NULL;
    self->taken = done ? PyObject_CallNoArgs(self->take) : NULL;
    self->sent = 0;
    lock_release(self->lock);
    if (error) Py_XSETREF(self->interruption, error); /* it is raised once what is encrypted counts */
    if (!self->taken) return done ? -1 : 0;
    flush(stream, flags); /* what is left is sent next time, and errors come again */
    if (PyErr_Occurred()) Py_XSETREF(self->interruption, taken_error());
    return (ssize_t)done;
}

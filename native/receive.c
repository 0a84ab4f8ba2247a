/* Receives frames. A frame like the last is received in one system call with its body where it stays; any other is
   received into scratch first. */

#include "speedups.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#define DIRECT (16 << 10) /* from so many bytes on, one buffer of several is received where it stays */
#define DONT_WAIT_READS 16 /* receives in a row without waiting: a fast peer must not keep the thread */

/* The next frame in scratch; NULL without an error until more is received. */
static Frame *next_frame(Stream *self)
{
    if (self->frame) return take_body(self);
    Py_ssize_t have = self->unread - self->start;
    if (have < HEADER_BYTES) {
        rewind_scratch(self, 0);
        return NULL;
    }
    const unsigned char *bytes = (unsigned char *)self->scratch + self->start;
    Header header;
    if (check_header(self, bytes, &header)) return NULL;
    Py_ssize_t first = HEADER_BYTES + (Py_ssize_t)header.head_bytes;
    if (have < first) {
        rewind_scratch(self, first);
        return NULL;
    }
    PyObject *parsed = head_of(self, (char *)bytes + HEADER_BYTES, header.head_bytes);
    if (!parsed || check_body(self, &header, parsed)) return NULL;
    Frame *frame = frame_new(self->frame_type, bytes, parsed);
    if (!frame) return NULL;
    int one = header.body_bytes && self->last_count == 1 && header.kind != CHUNK;
    int alone = !self->start && (uint64_t)(have - first) <= header.body_bytes;
    self->like_first = first;
    self->like_body = one && alone && header.head_bytes <= REMEMBERED_BYTES ? (Py_ssize_t)header.body_bytes : 0;
    if ((self->last_count || header.kind == CHUNK) && take_blocks(self, frame, &header, parsed)) {
        Py_DECREF(frame);
        return NULL;
    }
    consumed(self, self->start + first);
    if (!header.body_bytes) return frame;
    self->frame = frame;
    self->index = self->filled = 0;
    self->remaining = header.body_bytes;
    return take_body(self);
}

/* The frame of a header and head like the last; NULL without an error if they are others. */
static Frame *frame_like_last(Stream *self, const unsigned char *bytes)
{
    Header header;
    if (check_header(self, bytes, &header)) return NULL;
    if (HEADER_BYTES + (Py_ssize_t)header.head_bytes != self->like_first || header.kind == CHUNK ||
        header.body_bytes != (uint64_t)self->like_body)
        return NULL;
    PyObject *parsed = head_of(self, (char *)bytes + HEADER_BYTES, header.head_bytes);
    if (!parsed || check_body(self, &header, parsed) || self->last_count != 1) return NULL;
    return frame_new(self->frame_type, bytes, parsed);
}

/* Decode what was received where the body of an expected frame belongs; then as next_frame. Takes the block. */
static Frame *expected_frame(Stream *self, Block *block, Py_ssize_t count)
{
    const unsigned char *bytes = (unsigned char *)block->data - self->like_first;
    Frame *frame = count >= self->like_first ? frame_like_last(self, bytes) : NULL;
    if (frame) {
        frame->blocks = (PyObject *)block;
        self->frame = frame;
        self->index = 0;
        self->filled = count - self->like_first;
        self->remaining = (uint64_t)(self->like_body - self->filled);
        return completed(self);
    }
    /* After an interruption, too: the next call decodes these bytes again. */
    if (count > self->size && grow(self, count)) self->torn = 1;
    else {
        memcpy(self->scratch, bytes, (size_t)count);
        self->unread = count;
    }
    Py_DECREF(block);
    self->like_body = 0;
    return PyErr_Occurred() ? NULL : next_frame(self);
}

ssize_t socket_receive(Stream *self, char *to, Py_ssize_t space, int flags)
{
    for (;;) {
        ssize_t count;
        if (flags & MSG_DONTWAIT) count = recv(self->fd, to, (size_t)space, flags);
        else {
            Py_BEGIN_ALLOW_THREADS
            count = recv(self->fd, to, (size_t)space, flags);
            Py_END_ALLOW_THREADS
        }
        if (count > 0) return count;
        if (!count) {
            PyErr_SetString(self->ended, "the connection was closed");
            return 0;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) return -1;
        if (errno != EINTR) {
            stream_raise_ended(self);
            return 0;
        }
        if (PyErr_CheckSignals()) return 0;
    }
}

static ssize_t receive_bytes(Stream *self, char *to, Py_ssize_t space, int flags)
{
    return self->tunnel ? tunnel_receive(self, to, space, flags) : socket_receive(self, to, space, flags);
}

static Py_ssize_t least(Py_ssize_t space, Py_ssize_t most) { return most > 0 && most < space ? most : space; }

/* Receive once, and decode; then as next_frame. Clears *more if nothing has arrived. */
static Frame *receive_once(Stream *self, int flags, Py_ssize_t most, int *more)
{
    ssize_t count;
    Py_ssize_t space = 0;
    char *to = self->frame ? place(self, &space) : NULL;
    Block *block = NULL; /* without memory for it, the frame may still be a short one */
    if (!self->frame && !self->unread && self->like_body)
        block = block_new(self->state, (uint64_t)self->like_body, ROOM);
    if (space >= DIRECT || (space && (uint64_t)space == self->remaining)) {
        count = receive_bytes(self, to, least(space, most), flags);
        if (count > 0) {
            filled(self, count);
            return completed(self);
        }
    } else if (block) {
        Py_ssize_t expected = self->like_first + self->like_body;
        count = receive_bytes(self, block->data - self->like_first, least(expected, most), flags);
        if (count > 0) return expected_frame(self, block, count);
        Py_DECREF(block);
    } else {
        count = receive_bytes(self, self->scratch + self->unread, least(self->size - self->unread, most), flags);
        if (count > 0) {
            self->unread += count;
            return next_frame(self);
        }
    }
    *more = 0;
    return NULL;
}

/* One thread at a time. 0, or -1 with an error. */
static int begin(Stream *self)
{
    if (self->receiving) {
        PyErr_SetString(PyExc_RuntimeError, "another thread receives from this stream");
        return -1;
    }
    self->receiving = 1;
    self->torn = 0;
    return 0;
}

static Frame *end(Stream *self, Frame *frame)
{
    self->receiving = 0;
    if (frame) self->torn = 1;
    return frame;
}

Frame *stream_receive(Stream *self, int flags, Py_ssize_t most)
{
    int more = 1;
    if (begin(self)) return NULL;
    Frame *frame = self->unread ? next_frame(self) : NULL;
    for (int reads = 0; !frame && more && !PyErr_Occurred(); reads++) {
        if (reads && (most || (reads == DONT_WAIT_READS && flags & MSG_DONTWAIT))) break;
        frame = receive_once(self, flags, most, &more);
        if (!frame && !PyErr_Occurred() && tunnel_interrupted(self)) break;
    }
    return end(self, frame);
}

/* Return a frame to Python. Handlers of signals run now: in Python they would run before the frame is stored. */
static PyObject *given(Stream *self, Frame *frame)
{
    if (frame && PyErr_CheckSignals()) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        PyErr_NormalizeException(&type, &error, &trace);
        Py_XSETREF(self->late, error);
        Py_XDECREF(type);
        Py_XDECREF(trace);
    }
    PyObject *late = frame ? tunnel_late(self) : NULL;
    if (late) Py_XSETREF(self->late, late);
    if (frame) return (PyObject *)frame;
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

PyObject *stream_receive_method(Stream *self, PyObject *const *args, Py_ssize_t count)
{
    int flags = count ? (int)PyLong_AsLong(args[0]) : 0;
    Py_ssize_t most = count > 1 ? PyLong_AsSsize_t(args[1]) : 0;
    if (PyErr_Occurred()) return NULL;
    return given(self, stream_receive(self, flags, most));
}

PyObject *stream_missing(Stream *self, void *unused)
{
    Py_ssize_t have = self->unread - self->start;
    if (self->frame) return PyLong_FromUnsignedLongLong(self->remaining);
    if (have < HEADER_BYTES) return PyLong_FromSsize_t(have ? HEADER_BYTES - have : 0);
    uint32_t head_bytes;
    memcpy(&head_bytes, self->scratch + self->start, 4);
    return PyLong_FromLongLong(HEADER_BYTES + (long long)head_bytes - have);
}

PyObject *stream_next(Stream *self, PyObject *unused)
{
    if (begin(self)) return NULL;
    return given(self, end(self, self->unread ? next_frame(self) : NULL));
}

PyObject *stream_skip(Stream *self, PyObject *kind)
{
    long skipped = PyLong_AsLong(kind), frames = 0;
    if (skipped == -1 && PyErr_Occurred()) return NULL;
    Py_ssize_t first = self->start, at = first;
    while (!self->frame && !self->receiving && self->unread - at >= HEADER_BYTES) {
        const unsigned char *bytes = (unsigned char *)self->scratch + at;
        uint64_t left = (uint64_t)(self->unread - at - HEADER_BYTES), body;
        uint32_t head;
        uint16_t zero;
        memcpy(&head, bytes, 4);
        memcpy(&zero, bytes + 6, 2);
        memcpy(&body, bytes + 16, 8);
        if (bytes[4] != skipped || zero || head > left || body > left - head) break;
        at += HEADER_BYTES + (Py_ssize_t)head + (Py_ssize_t)body;
        frames++;
    }
    PyObject *result = Py_BuildValue("ly#", frames, self->scratch + first, at - first);
    if (result && frames) consumed(self, at);
    return result;
}

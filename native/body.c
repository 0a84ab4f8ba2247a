/* The bytes of a frame on their way: in scratch until its head is decoded, then in the memory of its buffers. */

#include "speedups.h"
#include <stdlib.h>

/* ---------------------------------------------------------------- scratch */

void consumed(Stream *self, Py_ssize_t until)
{
    if (until < self->unread) {
        self->start = until;
        return;
    }
    self->start = self->unread = 0;
    if (self->size > SCRATCH) {
        char *smaller = realloc(self->scratch, SCRATCH);
        if (smaller) {
            self->scratch = smaller;
            self->size = SCRATCH;
        }
    }
}

int grow(Stream *self, Py_ssize_t size)
{
    char *grown = realloc(self->scratch, (size_t)size);
    if (!grown) {
        PyErr_NoMemory();
        return -1;
    }
    self->scratch = grown;
    self->size = size;
    return 0;
}

/* The memory grows with the bytes that arrive, not with the announced length. */
int rewind_scratch(Stream *self, Py_ssize_t wanted)
{
    Py_ssize_t have = self->unread - self->start;
    if (self->start) memmove(self->scratch, self->scratch + self->start, (size_t)have);
    self->start = 0;
    self->unread = have;
    if (wanted > self->size && self->size < 2 * have)
        return grow(self, wanted < 8 * self->size ? wanted + HEADER_BYTES : 8 * self->size);
    return 0;
}

/* ---------------------------------------------------------------- bodies */

static Block *block_at(Frame *frame, Py_ssize_t index)
{
    return (Block *)(PyTuple_Check(frame->blocks) ? PyTuple_GetItem(frame->blocks, index) : frame->blocks);
}

char *place(Stream *self, Py_ssize_t *space)
{
    for (;;) {
        Block *block = block_at(self->frame, self->index);
        *space = block->size - self->filled;
        if (*space) return block->data + self->filled;
        self->index++;
        self->filled = 0;
    }
}

void filled(Stream *self, Py_ssize_t count)
{
    self->filled += count;
    self->remaining -= (uint64_t)count;
}

Frame *completed(Stream *self)
{
    if (self->remaining) return NULL;
    Frame *frame = self->frame;
    self->frame = NULL;
    return frame;
}

Frame *take_body(Stream *self)
{
    while (self->remaining && self->start < self->unread) {
        Py_ssize_t space, count = self->unread - self->start;
        char *to = place(self, &space);
        if (count > space) count = space;
        memcpy(to, self->scratch + self->start, (size_t)count);
        filled(self, count);
        consumed(self, self->start + count);
    }
    return completed(self);
}

static Block *take_block(Stream *self, uint64_t size, size_t room)
{
    Block *block = block_new(self->state, size, room);
    if (!block) refuse(self, "refuse_memory", Py_BuildValue("(K)", (unsigned long long)size));
    return block;
}

int take_blocks(Stream *self, Frame *frame, const Header *header, PyObject *parsed)
{
    if (header->kind == CHUNK || self->last_count == 1) {
        frame->blocks = (PyObject *)take_block(self, header->body_bytes, 0);
        return frame->blocks ? 0 : -1;
    }
    PyObject *sizes = PyObject_GetAttr(parsed, self->state->str_sizes);
    PyObject *blocks = sizes ? PyTuple_New(self->last_count) : NULL;
    for (Py_ssize_t i = 0; blocks && i < self->last_count; i++) {
        unsigned long long size = PyLong_AsUnsignedLongLong(PyTuple_GetItem(sizes, i));
        PyObject *block = PyErr_Occurred() ? NULL : (PyObject *)take_block(self, size, 0);
        if (!block || PyTuple_SetItem(blocks, i, block)) Py_CLEAR(blocks);
    }
    Py_XDECREF(sizes);
    frame->blocks = blocks;
    return blocks ? 0 : -1;
}

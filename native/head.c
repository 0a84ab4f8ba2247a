/* Checks the header and the head of a frame. All lengths from the peer are checked here, before memory is taken. */

#include "speedups.h"

void refuse(Stream *self, const char *method, PyObject *args)
{
    PyObject *refusal = args ? PyObject_GetAttrString(self->limits, method) : NULL;
    PyObject *done = refusal ? PyObject_CallObject(refusal, args) : NULL;
    if (done) PyErr_Format(PyExc_SystemError, "%s did not raise", method);
    Py_XDECREF(done);
    Py_XDECREF(refusal);
    Py_XDECREF(args);
}

int check_header(Stream *self, const unsigned char *bytes, Header *header)
{
    uint16_t zero;
    memcpy(&header->head_bytes, bytes, 4);
    memcpy(&zero, bytes + 6, 2);
    memcpy(&header->body_bytes, bytes + 16, 8);
    header->kind = bytes[4];
    if (!zero && header->kind && header->kind <= LAST_KIND && header->head_bytes <= self->max_head &&
        header->body_bytes <= self->max_body)
        return 0;
    refuse(self, "refuse_header",
           Py_BuildValue("kiHK", (unsigned long)header->head_bytes, header->kind, zero,
                         (unsigned long long)header->body_bytes));
    return -1;
}

int check_body(Stream *self, const Header *header, PyObject *parsed)
{
    uint64_t body = header->body_bytes;
    int fits = header->kind == CHUNK ? !self->last_count && body <= MAX_CHUNK : self->last_bytes == body;
    uint64_t made = self->last_made;
    if (fits && (made <= self->max_made || made - self->max_made <= MADE_PER_BYTE * body)) return 0;
    refuse(self, "refuse_body", Py_BuildValue("iOK", header->kind, parsed, (unsigned long long)body));
    return -1;
}

/* ---------------------------------------------------------------- heads */

/* An attribute that is a whole number; the largest for one that is larger. -1 with an error. */
static int get_number(PyObject *parsed, PyObject *name, unsigned long long *number)
{
    PyObject *value = PyObject_GetAttr(parsed, name);
    if (!value) return -1;
    *number = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError)) return -1;
    PyErr_Clear(); /* then *number is the largest */
    return 0;
}

static PyObject *parse_head(Stream *self, PyObject *head)
{
    PyObject *parsed = PyDict_GetItemWithError(self->heads, head);
    if (parsed || PyErr_Occurred()) return Py_XNewRef(parsed);
    parsed = PyObject_CallFunctionObjArgs(self->parse, head, NULL);
    if (parsed && PyBytes_Size(head) <= REMEMBERED_BYTES) {
        if (PyDict_Size(self->heads) >= REMEMBERED_HEADS) PyDict_Clear(self->heads);
        if (PyDict_SetItem(self->heads, head, parsed)) Py_CLEAR(parsed);
    }
    return parsed;
}

PyObject *head_of(Stream *self, const char *bytes, Py_ssize_t length)
{
    State *state = self->state;
    if (self->last_head && PyBytes_Size(self->last_head) == length &&
        !memcmp(PyBytes_AsString(self->last_head), bytes, (size_t)length))
        return self->last_parsed;
    Py_CLEAR(self->last_head);
    PyObject *head = PyBytes_FromStringAndSize(bytes, length);
    PyObject *parsed = head ? parse_head(self, head) : NULL;
    PyObject *sizes = parsed ? PyObject_GetAttr(parsed, state->str_sizes) : NULL;
    if (!sizes || get_number(parsed, state->str_body_bytes, &self->last_bytes) ||
        get_number(parsed, state->str_made, &self->last_made)) {
        Py_XDECREF(sizes);
        Py_XDECREF(parsed);
        Py_XDECREF(head);
        return NULL;
    }
    self->last_count = PyTuple_Size(sizes);
    Py_DECREF(sizes);
    self->last_head = head;
    Py_XSETREF(self->last_parsed, parsed);
    return parsed;
}

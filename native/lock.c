/* A lock as threading.Lock, which C reaches without a call of a Python method. */

#include "speedups.h"
#include <time.h>

#define LONGEST_S 1e9 /* the system's clocks limit a wait; more is endless */

static long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static int acquire_slowly(Lock *self, long long wait_us)
{
    long long until = wait_us < 0 ? 0 : now_us() + wait_us;
    for (;;) {
        int got;
        Py_BEGIN_ALLOW_THREADS
        got = PyThread_acquire_lock_timed(self->lock, wait_us, 1);
        Py_END_ALLOW_THREADS
        if (got != PY_LOCK_INTR) return got == PY_LOCK_ACQUIRED;
        if (PyErr_CheckSignals()) return -1;
        if (wait_us >= 0 && (wait_us = until - now_us()) < 0) return 0;
    }
}

int lock_acquire(Lock *self, long long wait_us)
{
    int got = PyThread_acquire_lock(self->lock, NOWAIT_LOCK);
    if (!got && wait_us) got = acquire_slowly(self, wait_us);
    if (got > 0) self->locked = 1;
    return got;
}

void lock_release(Lock *self)
{
    self->locked = 0;
    self->releases++;
    PyThread_release_lock(self->lock);
}

static PyObject *acquire(Lock *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"blocking", "timeout", NULL};
    int blocking = 1;
    double timeout = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|pd", names, &blocking, &timeout)) return NULL;
    int endless = !(timeout >= 0 && timeout < LONGEST_S);
    int got = lock_acquire(self, !blocking ? 0 : endless ? -1 : (long long)(timeout * 1e6));
    return got < 0 ? NULL : PyBool_FromLong(got);
}

static PyObject *release(Lock *self, PyObject *unused)
{
    if (!self->locked) {
        PyErr_SetString(PyExc_RuntimeError, "release unlocked lock");
        return NULL;
    }
    lock_release(self);
    Py_RETURN_NONE;
}

static PyObject *enter(Lock *self, PyObject *unused)
{
    return lock_acquire(self, -1) < 0 ? NULL : PyBool_FromLong(1);
}

static PyObject *leave(Lock *self, PyObject *args) { return release(self, NULL); }

static PyObject *locked(Lock *self, PyObject *unused) { return PyBool_FromLong(self->locked); }

static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    Lock *self = (Lock *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self && !(self->lock = PyThread_allocate_lock())) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void lock_dealloc(Lock *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->lock) {
        if (self->locked) PyThread_release_lock(self->lock);
        PyThread_free_lock(self->lock);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))acquire, METH_VARARGS | METH_KEYWORDS, "As threading.Lock.acquire."},
    {"release", (PyCFunction)release, METH_NOARGS, "As threading.Lock.release."},
    {"locked", (PyCFunction)locked, METH_NOARGS, "Whether a thread holds it."},
    {"__enter__", (PyCFunction)enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)leave, METH_VARARGS, NULL},
    {NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "A lock as threading.Lock."},
    {Py_tp_new, lock_new},
    {Py_tp_dealloc, lock_dealloc},
    {Py_tp_methods, methods},
    {0, NULL}};
PyType_Spec lock_spec = {"rpcsys.speedups.Lock", sizeof(Lock), 0, Py_TPFLAGS_DEFAULT, slots};

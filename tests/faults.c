#include "faults.h"
#undef PyType_GetSlot

__attribute__((visibility("default"))) int faults_after;

int fault(void) { return faults_after > 0 && !--faults_after; }

int fault_with_error(void)
{
    int failed = fault();
    if (failed) PyErr_NoMemory();
    return failed;
}

static PyObject *no_memory(PyTypeObject *type, Py_ssize_t count) { return PyErr_NoMemory(); }

void *slot_or_fault(PyTypeObject *type, int slot)
{
    return slot == Py_tp_alloc && fault() ? (void *)no_memory : PyType_GetSlot(type, slot);
}

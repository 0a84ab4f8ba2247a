/* Compiled into the library by tests/test_sanitizers.py: the n-th of its calls that can fail fails, as without memory. */

#include "speedups.h"
#include <stdlib.h>
#include <sys/mman.h>

/* Counts down at each such call; the one that reaches 0 fails. */
extern __attribute__((visibility("default"))) int faults_after;
int fault(void);          /* whether this call fails */
int fault_with_error(void); /* the same, with a MemoryError */
void *slot_or_fault(PyTypeObject *type, int slot);

#define malloc(...) (fault() ? NULL : malloc(__VA_ARGS__))
#define realloc(...) (fault() ? NULL : realloc(__VA_ARGS__))
#define aligned_alloc(...) (fault() ? NULL : aligned_alloc(__VA_ARGS__))
#define mmap(...) (fault() ? MAP_FAILED : mmap(__VA_ARGS__))
#define PyMem_Malloc(...) (fault() ? NULL : PyMem_Malloc(__VA_ARGS__))
#define PyMem_Calloc(...) (fault() ? NULL : PyMem_Calloc(__VA_ARGS__))
#define PyThread_allocate_lock() (fault() ? NULL : PyThread_allocate_lock())
#define PyType_GetSlot slot_or_fault

#define OBJECT(call) (fault_with_error() ? NULL : call)
#define PyBytes_FromStringAndSize(...) OBJECT(PyBytes_FromStringAndSize(__VA_ARGS__))
#define PyDict_GetItemWithError(...) OBJECT(PyDict_GetItemWithError(__VA_ARGS__))
#define PyDict_New() OBJECT(PyDict_New())
#define PyLong_FromUnsignedLong(...) OBJECT(PyLong_FromUnsignedLong(__VA_ARGS__))
#define PyMemoryView_FromObject(...) OBJECT(PyMemoryView_FromObject(__VA_ARGS__))
#define PyObject_Call(...) OBJECT(PyObject_Call(__VA_ARGS__))
#define PyObject_CallFunctionObjArgs(...) OBJECT(PyObject_CallFunctionObjArgs(__VA_ARGS__))
#define PyObject_CallNoArgs(...) OBJECT(PyObject_CallNoArgs(__VA_ARGS__))
#define PyObject_CallObject(...) OBJECT(PyObject_CallObject(__VA_ARGS__))
#define PyObject_GetAttr(...) OBJECT(PyObject_GetAttr(__VA_ARGS__))
#define PyObject_GetAttrString(...) OBJECT(PyObject_GetAttrString(__VA_ARGS__))
#define PySequence_Tuple(...) OBJECT(PySequence_Tuple(__VA_ARGS__))
#define PyTuple_New(...) OBJECT(PyTuple_New(__VA_ARGS__))
#define PyUnicode_InternFromString(...) OBJECT(PyUnicode_InternFromString(__VA_ARGS__))
#define PyType_FromModuleAndSpec(...) OBJECT(PyType_FromModuleAndSpec(__VA_ARGS__))
#define _PyObject_New(...) OBJECT(_PyObject_New(__VA_ARGS__))
#ifdef Py_BuildValue /* until Python 3.13, macros for functions with other names */
#define _Py_BuildValue_SizeT(...) OBJECT(_Py_BuildValue_SizeT(__VA_ARGS__))
#define _PyObject_CallFunction_SizeT(...) OBJECT(_PyObject_CallFunction_SizeT(__VA_ARGS__))
#define _PyObject_CallMethod_SizeT(...) OBJECT(_PyObject_CallMethod_SizeT(__VA_ARGS__))
#else
#define Py_BuildValue(...) OBJECT(Py_BuildValue(__VA_ARGS__))
#define PyObject_CallFunction(...) OBJECT(PyObject_CallFunction(__VA_ARGS__))
#define PyObject_CallMethod(...) OBJECT(PyObject_CallMethod(__VA_ARGS__))
#endif

#define NUMBER(call) (fault_with_error() ? -1 : call)
#define PyDict_SetItem(...) NUMBER(PyDict_SetItem(__VA_ARGS__))
#define PyErr_CheckSignals() NUMBER(PyErr_CheckSignals())
#define PyList_Append(...) NUMBER(PyList_Append(__VA_ARGS__))
#define PyModule_AddIntConstant(...) NUMBER(PyModule_AddIntConstant(__VA_ARGS__))
#define PyModule_AddObject(...) NUMBER(PyModule_AddObject(__VA_ARGS__))
#define PyObject_GetBuffer(...) NUMBER(PyObject_GetBuffer(__VA_ARGS__))
#define PySet_Contains(...) NUMBER(PySet_Contains(__VA_ARGS__))
#define PySet_Discard(...) NUMBER(PySet_Discard(__VA_ARGS__))

/* Finds the template of a frame for values like earlier ones. */

#include "speedups.h"

typedef struct {
    PyObject *parts[1 + 2 * MAX_VALUES];
    Py_ssize_t count;
} Key;

static int add(Key *key, PyObject *part)
{
    if (!part) return -1;
    key->parts[key->count++] = part;
    return 0;
}

/* numpy's array type, once numpy has been imported. */
static PyObject *find_ndarray(State *state)
{
    if (!state->ndarray) {
        PyObject *numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
        state->ndarray = numpy ? PyObject_GetAttrString(numpy, "ndarray") : NULL;
        if (!state->ndarray) PyErr_Clear(); /* it is being imported */
    }
    return state->ndarray;
}

/* Add what a value adds to the key: 1 if it has a buffer, 0 if it has none, -1 if it has no place in a key. */
static int add_value(State *state, Key *key, PyObject *value)
{
    PyObject *type = (PyObject *)Py_TYPE(value);
    if (type == (PyObject *)&PyLong_Type || type == (PyObject *)&PyBool_Type || value == Py_None)
        return add(key, Py_NewRef(type)) || add(key, Py_NewRef(value)) ? -1 : 0;
    PyObject *kind = type == find_ndarray(state) ? state->str_dtype : type == state->memoryview ? state->str_format : NULL;
    if (!kind || add(key, PyObject_GetAttr(value, kind)) || add(key, PyObject_GetAttr(value, state->str_shape)))
        return -1;
    return 1;
}

PyObject *template_find(State *state, PyObject *cache, PyObject *about, PyObject *const *values, Py_ssize_t count,
                        PyObject **buffers, Py_ssize_t *buffer_count)
{
    Key key = {{Py_NewRef(about)}, 1};
    PyObject *template = NULL, *tuple = NULL;
    int found = count <= MAX_VALUES ? 0 : -1;
    *buffer_count = 0;
    for (Py_ssize_t i = 0; i < count && found >= 0; i++) {
        found = add_value(state, &key, values[i]);
        if (found > 0) buffers[(*buffer_count)++] = values[i];
    }
    if (found >= 0 && (tuple = PyTuple_New(key.count))) {
        for (Py_ssize_t i = 0; i < key.count; i++) PyTuple_SetItem(tuple, i, key.parts[i]);
        key.count = 0;
        template = PyDict_GetItemWithError(cache, tuple);
        Py_DECREF(tuple);
    }
    while (key.count) Py_DECREF(key.parts[--key.count]);
    if (!template) PyErr_Clear(); /* such as of a value that cannot be hashed: Python finds the reason again */
    return template;
}

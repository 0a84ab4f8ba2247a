/* The module rpcsys.speedups. */

#include "speedups.h"

State *state_of(PyTypeObject *type)
{
    for (; type; type = PyType_GetSlot(type, Py_tp_base)) {
        State *state = PyType_GetModuleState(type);
        if (state) return state;
        PyErr_Clear(); /* a subclass of Python */
    }
    PyErr_SetString(PyExc_TypeError, "no type of rpcsys.speedups");
    return NULL;
}

static PyTypeObject *add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && PyModule_AddObject(module, name, Py_NewRef(type))) {
        Py_DECREF(type); /* the reference that was not taken */
        Py_CLEAR(type);
    }
    return (PyTypeObject *)type;
}

static int add_types(PyObject *module, State *state)
{
    static const struct { const char *name; PyType_Spec *spec; } others[] = {
        {"Exchange", &exchange_spec}, {"FunctionBase", &function_spec}, {"CallLoop", &loop_spec}};
    state->block_type = add_type(module, "Block", &block_spec);
    state->frame_type = add_type(module, "Frame", &frame_spec);
    state->lock_type = add_type(module, "Lock", &lock_spec);
    state->stream_type = add_type(module, "Stream", &stream_spec);
    if (!state->block_type || !state->frame_type || !state->lock_type || !state->stream_type) return -1;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        PyTypeObject *type = add_type(module, others[i].name, others[i].spec);
        if (!type) return -1;
        Py_DECREF(type);
    }
    return 0;
}

static int fill(PyObject *module)
{
    State *state = PyModule_GetState(module);
    pool_init(&state->pool);
    const struct { PyObject **place; const char *text; } names[] = {
        {&state->str_body_bytes, "body_bytes"}, {&state->str_dtype, "dtype"}, {&state->str_first, "first"},
        {&state->str_format, "format"}, {&state->str_head, "head"}, {&state->str_made, "made"},
        {&state->str_memo, "memo"}, {&state->str_shape, "shape"}, {&state->str_sizes, "sizes"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].place = PyUnicode_InternFromString(names[i].text))) return -1;
    if (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE)) return -1;
    state->memoryview = Py_NewRef((PyObject *)&PyMemoryView_Type);
    return add_types(module, state);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->block_type);
    Py_VISIT(state->frame_type);
    Py_VISIT(state->lock_type);
    Py_VISIT(state->stream_type);
    Py_VISIT(state->ndarray);
    return 0;
}

/* The end of the module, after all objects of its types. There is no m_clear: a cycle through the module ends at a type. */
static void release(void *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->block_type);
    Py_CLEAR(state->frame_type);
    Py_CLEAR(state->lock_type);
    Py_CLEAR(state->stream_type);
    Py_CLEAR(state->ndarray);
    Py_CLEAR(state->memoryview);
    PyObject **names[] = {&state->str_body_bytes, &state->str_dtype, &state->str_first, &state->str_format,
                          &state->str_head, &state->str_made, &state->str_memo, &state->str_shape, &state->str_sizes};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) Py_CLEAR(*names[i]);
    pool_clear(&state->pool);
}

static PyObject *drop_idle_memory(PyObject *module, PyObject *unused)
{
    State *state = PyModule_GetState(module);
    pool_clear(&state->pool);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"drop_idle_memory", drop_idle_memory, METH_NOARGS, "Return the memory that waits to be reused to the system."},
    {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "rpcsys.speedups", "The fast path of an rpcsys/1 session.", sizeof(State), functions, slots,
    traverse, NULL, release};

PyMODINIT_FUNC PyInit_speedups(void) { return PyModuleDef_Init(&definition); }

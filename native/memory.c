/* Memory that arrays are received into: 64-byte aligned, reused, and returned when its last user drops it.

   Fresh pages cost more than the transfer. Blocks above 1 MiB are mappings, in huge pages where the system has them. */

#include "speedups.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE ((size_t)1 << (SMALL_ORDERS - 1))
#define GRAIN ((size_t)2 << 20) /* huge pages are 2 MiB; multiples of it let one block serve many sizes */
#define LEAST_ORDER 6           /* 64 bytes */

void pool_init(Pool *pool)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    uint64_t memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 8 : (uint64_t)256 << 20;
    pool->cap = (size_t)(memory < (uint64_t)1 << 30 ? memory : (uint64_t)1 << 30);
}

static void drop_oldest(Pool *pool)
{
    munmap(pool->large[0].base, pool->large[0].total);
    pool->large_bytes -= pool->large[0].total;
    memmove(&pool->large[0], &pool->large[1], (size_t)--pool->large_count * sizeof pool->large[0]);
}

void pool_clear(Pool *pool)
{
    for (int order = 0; order < SMALL_ORDERS; order++)
        while (pool->count[order]) free(pool->small[order][--pool->count[order]]);
    while (pool->large_count) drop_oldest(pool);
}

static char *take_small(Pool *pool, size_t wanted, size_t *total)
{
    int order = LEAST_ORDER;
    while ((size_t)1 << order < wanted) order++;
    *total = (size_t)1 << order;
    if (pool->count[order]) return pool->small[order][--pool->count[order]];
    return aligned_alloc(ALIGNMENT, *total);
}

static char *take_large(Pool *pool, size_t wanted, size_t *total)
{
    size_t rounded = (wanted + GRAIN - 1) / GRAIN * GRAIN;
    for (int i = pool->large_count - 1; i >= 0; i--)
        if (pool->large[i].total >= rounded && pool->large[i].total <= 2 * rounded) {
            char *base = pool->large[i].base;
            *total = pool->large[i].total;
            pool->large_bytes -= *total;
            memmove(&pool->large[i], &pool->large[i + 1], (size_t)(--pool->large_count - i) * sizeof pool->large[0]);
            return base;
        }
    *total = rounded;
    char *base = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return NULL;
    madvise(base, rounded, MADV_HUGEPAGE); /* a kernel without huge pages refuses: slower, but correct */
    return base;
}

static void give_back(Pool *pool, char *base, size_t total)
{
    if (total <= LARGE) {
        int order = LEAST_ORDER;
        while ((size_t)1 << order < total) order++;
        if (pool->count[order] < KEPT) pool->small[order][pool->count[order]++] = base;
        else free(base);
        return;
    }
    while (pool->large_count && (pool->large_count == KEPT_LARGE || pool->large_bytes + total > pool->cap))
        drop_oldest(pool);
    if (total > pool->cap) {
        munmap(base, total);
        return;
    }
    pool->large[pool->large_count].base = base;
    pool->large[pool->large_count++].total = total;
    pool->large_bytes += total;
}

Block *block_new(State *state, uint64_t size, size_t room)
{
    if (size > (uint64_t)PY_SSIZE_T_MAX - ROOM - GRAIN) return NULL;
    Block *block = PyObject_New(Block, state->block_type);
    if (!block) {
        PyErr_Clear();
        return NULL;
    }
    size_t wanted = (size_t)size + room;
    block->state = state;
    block->size = (Py_ssize_t)size;
    block->base = wanted <= LARGE ? take_small(&state->pool, wanted, &block->total)
                                  : take_large(&state->pool, wanted, &block->total);
    if (!block->base) {
        Py_DECREF(block);
        return NULL;
    }
    block->data = block->base + room;
    return block;
}

static void block_dealloc(Block *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->base) give_back(&self->state->pool, self->base, self->total);
    PyObject_Free(self);
    Py_DECREF(type); /* it keeps the module, and so the pool */
}

static int block_getbuffer(Block *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)self, self->data, self->size, 0, flags);
}

static Py_ssize_t block_length(Block *self) { return self->size; }

static PyType_Slot block_slots[] = {
    {Py_tp_doc, "The memory of one received array."},
    {Py_tp_dealloc, block_dealloc},
    {Py_bf_getbuffer, block_getbuffer},
    {Py_sq_length, block_length},
    {0, NULL}};
PyType_Spec block_spec = {"rpcsys.speedups.Block", sizeof(Block), 0, Py_TPFLAGS_DEFAULT, block_slots};

/* The fast path of an rpcsys/1 session, in C. Optional: rpcsys/stream.py does the same in Python.

   It decides nothing and writes no sentence for people: what is not plain goes to Python. The interpreter lock protects
   all that is here; it is released around system calls that may wait. */

#ifndef RPCSYS_SPEEDUPS_H
#define RPCSYS_SPEEDUPS_H

#define PY_SSIZE_T_CLEAN
#include <patchlevel.h>
#if PY_VERSION_HEX >= 0x030b0000
#define Py_LIMITED_API 0x030b0000 /* the first with buffers */
#endif
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "headers are read as they are, in the byte order of the wire"
#endif

#if PY_VERSION_HEX < 0x030a0000
static inline PyObject *Py_XNewRef(PyObject *object)
{
    Py_XINCREF(object);
    return object;
}
#define Py_NewRef(object) Py_XNewRef((PyObject *)(object))
#define Py_XNewRef(object) Py_XNewRef((PyObject *)(object))
#endif
#ifndef Py_XSETREF /* not in the limited API */
#define Py_XSETREF(place, value)                                                                                       \
    do {                                                                                                               \
        PyObject *old_value = (PyObject *)(place);                                                                     \
        (place) = (value);                                                                                             \
        Py_XDECREF(old_value);                                                                                         \
    } while (0)
#endif

#define HEADER_BYTES 24
#define ALIGNMENT 64
/* Values of rpcsys.wire.frames and rpcsys.wire.limits; a test compares them. */
#define CALL 2
#define RESULT 3
#define CHUNK 8
#define INTERFACE 4
#define LAST_KIND 11
#define MAX_CHUNK (4u << 20)
#define MADE_PER_BYTE 64
#define REMEMBERED_BYTES 1024
#define REMEMBERED_HEADS 256

/* The bytes before a block's memory, where header and head of a frame are received together with its body. */
#define ROOM (HEADER_BYTES + REMEMBERED_BYTES + 40)

/* ---------------------------------------------------------------- memory.c */

#define SMALL_ORDERS 21 /* blocks of up to 1 MiB, by powers of two */
#define KEPT 4          /* idle blocks of each power of two */
#define KEPT_LARGE 64

typedef struct {
    int count[SMALL_ORDERS];
    char *small[SMALL_ORDERS][KEPT];
    int large_count;
    struct { char *base; size_t total; } large[KEPT_LARGE]; /* the oldest first */
    size_t large_bytes, cap;
} Pool;

/* What the module keeps for all its objects. */
typedef struct {
    Pool pool;
    PyTypeObject *block_type, *frame_type, *lock_type, *stream_type;
    PyObject *ndarray, *memoryview; /* array types; numpy's is NULL until numpy is imported */
    PyObject *str_body_bytes, *str_dtype, *str_first, *str_format, *str_head, *str_made, *str_memo, *str_shape, *str_sizes;
} State;

typedef struct {
    PyObject_HEAD
    State *state;
    char *data;
    Py_ssize_t size;
    char *base;
    size_t total;
} Block;

extern PyType_Spec block_spec;
void pool_init(Pool *pool);
void pool_clear(Pool *pool);
/* A block with `room` free bytes before its data; NULL without an error if the system has no such memory. */
Block *block_new(State *state, uint64_t size, size_t room);

/* ---------------------------------------------------------------- lock.c */

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    int locked;
    unsigned int releases; /* tells a holder whether Python has released it meanwhile */
} Lock;

extern PyType_Spec lock_spec;
/* Whether it was acquired; -1 with an error after a signal. `wait_us`: 0 to do without, -1 to wait. */
int lock_acquire(Lock *self, long long wait_us);
void lock_release(Lock *self);

/* ---------------------------------------------------------------- frame.c */

typedef struct {
    PyObject_HEAD
    unsigned char kind, flags;
    unsigned int deadline_ms, call_id;
    PyObject *parsed; /* rpcsys.wire.head.ParsedHead */
    PyObject *blocks; /* the only Block, a tuple of them, or NULL */
    PyObject *views;  /* a tuple of memoryviews, made at the first use */
} Frame;

extern PyType_Spec frame_spec;
Frame *frame_new(PyTypeObject *type, const unsigned char *header, PyObject *parsed);

/* ---------------------------------------------------------------- stream.c, receive.c, send.c */

typedef struct Tunnel Tunnel; /* tunnel.c: TLS between a stream and its socket */

typedef struct {
    PyObject_HEAD
    State *state;
    Tunnel *tunnel; /* NULL for a stream in the clear */
    int fd;
    PyObject *limits, *parse, *ended;
    PyTypeObject *frame_type;
    unsigned long long max_body, max_head, max_made;
    unsigned int last_id;
    /* Receiving: scratch[start:unread] is received and not yet decoded; both are 0 when it is empty. */
    char *scratch;
    Py_ssize_t size, start, unread;
    Frame *frame; /* its body is being received: the block, the bytes in it, and the bytes that are missing in all */
    Py_ssize_t index, filled;
    uint64_t remaining;
    char receiving; /* a thread receives: another one, or a handler inside it, would move what it uses */
    Py_ssize_t like_first, like_body; /* the last frame, if it had one buffer and came alone: header and head, body */
    PyObject *heads;                  /* bytes -> ParsedHead */
    PyObject *last_head, *last_parsed; /* and what is to be known of it: */
    Py_ssize_t last_count;
    unsigned long long last_bytes, last_made;
    char torn;      /* whether a frame was returned that may not be handled */
    PyObject *late; /* the error of a signal's handler that came with a frame; raised once the frame is handled */
    /* An interrupted send: its pieces, and how many bytes of them were sent. */
    PyObject *sending;
    Py_ssize_t sent;
} Stream;

extern PyType_Spec stream_spec;
void stream_raise_ended(Stream *self); /* for errno */
unsigned int stream_next_id(Stream *self);
/* The next frame. NULL without an error after a tick, or with MSG_DONTWAIT if no complete one has arrived. With `most`, one
   receive of so many bytes. */
Frame *stream_receive(Stream *self, int flags, Py_ssize_t most);
PyObject *stream_receive_method(Stream *self, PyObject *const *args, Py_ssize_t count);
PyObject *stream_next(Stream *self, PyObject *unused);
PyObject *stream_missing(Stream *self, void *unused);
PyObject *stream_skip(Stream *self, PyObject *kind);
PyObject *stream_send(Stream *self, PyObject *args, PyObject *keywords);
/* Send one frame: `first` is its header and head, with zeros for the `numbers` of its header: deadline_ms, in a RESULT what
   the call took in microseconds, and call_id. 0; with an error -1, or NOT_BEGUN. */
#define NOT_BEGUN (-2)
int stream_send_frame(Stream *self, PyObject *first, const unsigned int numbers[2], PyObject *const *buffers,
                      Py_ssize_t count, PyObject *on_full);

/* Receive from the socket once. The number of bytes; 0 with an error, -1 without one if there are none now. */
ssize_t socket_receive(Stream *self, char *to, Py_ssize_t space, int flags);

/* ---------------------------------------------------------------- tunnel.c */

Tunnel *tunnel_new(State *state, PyObject *parts); /* NULL with an error */
void tunnel_free(Tunnel *self);
/* As socket_receive. A handler's error that comes with bytes waits. */
ssize_t tunnel_receive(Stream *stream, char *to, Py_ssize_t space, int flags);
/* Encrypt the first bytes of `pieces`, at most, and send. How many bytes are encrypted: they are never sent again, and an
   interruption may wait; -1 with an error, or for errno. */
ssize_t tunnel_send(Stream *stream, const struct iovec *pieces, Py_ssize_t count, int flags);
int tunnel_unsent(Stream *stream); /* whether ciphertext waits to be sent */
int tunnel_interrupted(Stream *stream);    /* raise an error that waits; whether there is one */
void tunnel_raise_soon(Stream *stream);    /* an error that waits: in Python, soon */
PyObject *tunnel_late(Stream *stream);     /* an error that waits, a new reference, or NULL */
int stream_held(Stream *stream);           /* whether bytes may be here that poll does not show */
PyObject *stream_tail(Stream *stream, PyObject *unused);
PyObject *stream_moved(Stream *stream, void *unused);

/* ---------------------------------------------------------------- head.c */

typedef struct {
    uint32_t head_bytes;
    uint64_t body_bytes;
    unsigned char kind;
} Header;

/* 0, or -1 with an error. */
int check_header(Stream *self, const unsigned char *bytes, Header *header);
int check_body(Stream *self, const Header *header, PyObject *parsed);
/* Have Python raise the error for what is refused, by a method of `Limits`. Takes args. */
void refuse(Stream *self, const char *method, PyObject *args);
/* The ParsedHead of a head, a borrowed reference. Sets last_count, last_bytes and last_made. */
PyObject *head_of(Stream *self, const char *bytes, Py_ssize_t length);

/* ---------------------------------------------------------------- body.c */

#define SCRATCH (64 << 10)
void consumed(Stream *self, Py_ssize_t until); /* scratch[:until] is decoded */
int grow(Stream *self, Py_ssize_t size);       /* scratch; 0, or -1 with an error */
/* Move the undecoded bytes to the front, with space behind them, in the end for `wanted` bytes in all. 0, or -1. */
int rewind_scratch(Stream *self, Py_ssize_t wanted);
int take_blocks(Stream *self, Frame *frame, const Header *header, PyObject *parsed); /* 0, or -1 with an error */
char *place(Stream *self, Py_ssize_t *space);   /* where the next bytes of the body belong */
void filled(Stream *self, Py_ssize_t count);    /* so many bytes of it have come */
Frame *completed(Stream *self);                 /* the frame whose body was received, if no byte is missing */
Frame *take_body(Stream *self);                 /* the same, with the body's bytes in scratch */

/* ---------------------------------------------------------------- template.c */

#define MAX_VALUES 16
/* The template in a HeadCache for such values, a borrowed reference, and their buffers; NULL without an error if there is
   none. The cache's key is that of rpcsys.wire.frames.signature. */
PyObject *template_find(State *state, PyObject *cache, PyObject *about, PyObject *const *values, Py_ssize_t count,
                        PyObject **buffers, Py_ssize_t *buffer_count);

/* ---------------------------------------------------------------- exchange.c, loop.c */

extern PyType_Spec exchange_spec, function_spec, loop_spec;

/* The module's state, for its types and subclasses of them. */
State *state_of(PyTypeObject *type);

#endif

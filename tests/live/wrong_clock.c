/* Preloaded: the time of day is WRONG_CLOCK seconds ahead or, with '=' before it, always the one that it says. All other
   clocks, and all waits, are as they were. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static void bend(struct timespec *now) {
    const char *text = getenv("WRONG_CLOCK");
    if (!text) return;
    if (*text == '=') {
        now->tv_sec = atoll(text + 1);
        now->tv_nsec = 0;
    } else {
        now->tv_sec += atoll(text);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long result = syscall(SYS_clock_gettime, clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) bend(now);
    return (int)result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}

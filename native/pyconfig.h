/* What Python's headers ask of the target's C compiler, for any target: in place of the pyconfig.h of this machine's
   Python. The limited API needs no more. */
#ifndef Py_PYCONFIG_H
#define Py_PYCONFIG_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#define HAVE_STDINT_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_UNISTD_H 1
#define HAVE_WCHAR_H 1
#define HAVE_SSIZE_T 1
#define SIZEOF_INT __SIZEOF_INT__
#define SIZEOF_LONG __SIZEOF_LONG__
#define SIZEOF_LONG_LONG __SIZEOF_LONG_LONG__
#define SIZEOF_SHORT __SIZEOF_SHORT__
#define SIZEOF_SIZE_T __SIZEOF_SIZE_T__
#define SIZEOF_VOID_P __SIZEOF_POINTER__
#define SIZEOF_WCHAR_T __SIZEOF_WCHAR_T__

#endif

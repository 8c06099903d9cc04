// Keeps a library that a newer gcc made loadable on the systems that manylinux_2_28 names
// (glibc 2.28, gcc 8's libstdc++).
//
// Two things would tie it to newer ones, both out of torch's stable headers: shared_ptr reads
// glibc 2.32's
// __libc_single_threaded, and string streams call members that libstdc++ 3.4.26 and later export.
// Both are made local here: the flag says "perhaps threaded", which is always right, and the
// streams are instantiated in this library.
#include <sstream>

#if defined(__linux__)
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}

template class std::basic_stringbuf<char>;
template class std::basic_istringstream<char>;
template class std::basic_ostringstream<char>;
template class std::basic_stringstream<char>;
#endif

// Keeps a library that a newer gcc made loadable on the systems that manylinux_2_28 names
// (glibc 2.28, gcc 8's libstdc++).
//
// Three things would tie it to newer ones: shared_ptr, out of torch's stable headers, reads glibc
// 2.32's __libc_single_threaded; string streams call members that libstdc++ 3.4.26 and later
// export; and allocators of ATen's headers call a function of libstdc++ 3.4.29 for sizes that
// overflow. All are made local here: the flag says "perhaps threaded", which is always right, the
// streams are instantiated in this library, and the function throws what it throws there.
#include <new>
#include <sstream>

#if defined(__linux__)
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}

#if defined(__linux__) && defined(__GLIBCXX__)
// By its mangled name, since a declaration of libstdc++ fixes the visibility of the other.
extern "C" __attribute__((visibility("hidden"), noreturn)) void
opwright_bad_array_new_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void opwright_bad_array_new_length() { throw std::bad_array_new_length(); }
#endif

template class std::basic_stringbuf<char>;
template class std::basic_istringstream<char>;
template class std::basic_ostringstream<char>;
template class std::basic_stringstream<char>;
#endif

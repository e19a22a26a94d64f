/* What Wine 8 lacks: the one function of bcryptprimitives.dll that Rust's std imports. */
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE into, SIZE_T len) {
    return RtlGenRandom(into, (ULONG)len);
}

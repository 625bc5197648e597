#include "slots.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace adbg {
namespace {

#if defined(__x86_64__)
constexpr unsigned kJumpSlot = R_X86_64_JUMP_SLOT, kGlobDat = R_X86_64_GLOB_DAT;
constexpr bool kKnown = true;
#elif defined(__aarch64__)
// Untested: written after the ELF specification for the Arm 64-bit architecture (1026 and 1025).
constexpr unsigned kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobDat = R_AARCH64_GLOB_DAT;
constexpr bool kKnown = true;
#else
constexpr unsigned kJumpSlot = 0, kGlobDat = 0;
constexpr bool kKnown = false;
#endif

struct Search {
  const char* symbol;
  const char* const* libraries;
  std::vector<Slot>* found;
  std::vector<std::string>* names;
};

bool wanted(const char* name, const char* const* libraries) {
  if (!name || !*name) return false;
  const char* base = strrchr(name, '/');
  base = base ? base + 1 : name;
  for (; *libraries; libraries++)
    if (strstr(base, *libraries)) return true;
  return false;
}

uintptr_t page_size() { return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)); }

int visit(struct dl_phdr_info* info, size_t, void* argument) {
  Search& search = *static_cast<Search*>(argument);
  if (!wanted(info->dlpi_name, search.libraries)) return 0;
  if (search.names) search.names->push_back(info->dlpi_name);
  if (!search.found) return 0;
  const ElfW(Dyn)* dynamic = nullptr;
  uintptr_t relro_begin = 0, relro_end = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + header.p_vaddr);
    if (header.p_type == PT_GNU_RELRO) {
      relro_begin = info->dlpi_addr + header.p_vaddr;
      // Loaders round it down: the page that it ends inside of stays writable, for data follows there. Some aarch64
      // kernels have pages of 64 KB, and libraries may be linked for 4.
      relro_end = (relro_begin + header.p_memsz) & ~(page_size() - 1);
    }
  }
  if (!dynamic) return 0;
  // glibc relocates these pointers in place, other loaders (musl) leave them relative to the library.
  auto address = [&](ElfW(Addr) value) { return value < info->dlpi_addr ? value + info->dlpi_addr : value; };
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela)*jump = nullptr, *rela = nullptr;
  size_t jump_bytes = 0, rela_bytes = 0;
  bool with_addends = true;
  for (; dynamic->d_tag != DT_NULL; dynamic++) switch (dynamic->d_tag) {
      case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(address(dynamic->d_un.d_ptr)); break;
      case DT_STRTAB: strings = reinterpret_cast<const char*>(address(dynamic->d_un.d_ptr)); break;
      case DT_JMPREL: jump = reinterpret_cast<const ElfW(Rela)*>(address(dynamic->d_un.d_ptr)); break;
      case DT_PLTRELSZ: jump_bytes = dynamic->d_un.d_val; break;
      case DT_PLTREL: with_addends = dynamic->d_un.d_val == DT_RELA; break;
      case DT_RELA: rela = reinterpret_cast<const ElfW(Rela)*>(address(dynamic->d_un.d_ptr)); break;
      case DT_RELASZ: rela_bytes = dynamic->d_un.d_val; break;
    }
  if (!symbols || !strings || !with_addends) return 0;
  auto scan = [&](const ElfW(Rela) * entries, size_t bytes) {
    if (!entries) return;
    for (size_t i = 0, n = bytes / sizeof(*entries); i < n; i++) {
      unsigned type = ELF64_R_TYPE(entries[i].r_info);
      if (type != kJumpSlot && type != kGlobDat) continue;
      if (strcmp(strings + symbols[ELF64_R_SYM(entries[i].r_info)].st_name, search.symbol) != 0) continue;
      uintptr_t at = info->dlpi_addr + entries[i].r_offset;
      search.found->push_back({reinterpret_cast<void**>(at), at >= relro_begin && at < relro_end, info->dlpi_name});
    }
  };
  scan(jump, jump_bytes);
  scan(rela, rela_bytes);
  return 0;
}

bool write(const Slot& slot, void* value) {
  if (!slot.relro) {
    __atomic_store_n(slot.at, value, __ATOMIC_SEQ_CST);
    return true;
  }
  const uintptr_t size = page_size();
  void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot.at) & ~(size - 1));
  if (mprotect(page, size, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(slot.at, value, __ATOMIC_SEQ_CST);
  mprotect(page, size, PROT_READ);
  return true;
}

}  // namespace

std::vector<Slot> find_slots(const char* symbol, const char* const* libraries) {
  std::vector<Slot> found;
  Search search{symbol, libraries, &found, nullptr};
  if (kKnown) dl_iterate_phdr(visit, &search);
  return found;
}

void* find_symbol(const char* symbol, const char* const* libraries) {
  std::vector<std::string> names;
  Search search{symbol, libraries, nullptr, &names};
  dl_iterate_phdr(visit, &search);
  for (const std::string& name : names) {
    void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) continue;
    void* address = dlsym(handle, symbol);
    dlclose(handle);  // the library stays: its own user holds it
    if (address) return address;
  }
  return nullptr;
}

bool Interposed::find(const char* const* libraries, std::string& why) {
  if (on_) return true;
  real_ = find_symbol(symbol_, libraries);
  slots_ = real_ ? find_slots(symbol_, libraries) : std::vector<Slot>();
  if (!real_) why = std::string("symbol not found: ") + symbol_;
  else if (slots_.empty()) why = std::string("nothing calls it through a relocation slot: ") + symbol_;
  return !slots_.empty();
}

bool Interposed::put(std::string& why) {
  if (on_) return true;
  were_.assign(slots_.size(), nullptr);
  for (size_t i = 0; i < slots_.size(); i++) {
    were_[i] = __atomic_load_n(slots_[i].at, __ATOMIC_SEQ_CST);
    if (write(slots_[i], ours_)) continue;
    while (i-- > 0) write(slots_[i], were_[i]);
    why = std::string("its slot cannot be written: ") + symbol_;
    return false;
  }
  on_ = true;
  return true;
}

void Interposed::restore() {
  if (!on_) return;
  // Only what is still ours: another tool may have interposed after us, and calls us in turn.
  for (size_t i = 0; i < slots_.size(); i++)
    if (__atomic_load_n(slots_[i].at, __ATOMIC_SEQ_CST) == ours_) write(slots_[i], were_[i]);
  on_ = false;
}

}  // namespace adbg

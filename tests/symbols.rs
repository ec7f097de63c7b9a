//! What the plugin file shows to Slurm and what it asks of the program that loads it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use object::elf::{DF_1_NODELETE, DT_FLAGS_1, DT_NEEDED, Dyn64, FileHeader64};
use object::endian::Endianness;
use object::read::StringTable;
use object::read::elf::{Dyn, ElfFile, FileHeader};
use object::{Object, ObjectSymbol};

/// All that leaves the file. A new hook is added here on purpose or not at all.
const EXPORTS: &[&str] = &[
    "plugin_name",
    "plugin_type",
    "plugin_version",
    "slurm_spank_exit",
    "slurm_spank_init",
    "slurm_spank_init_failure_mode",
    "slurm_spank_init_post_opt",
    "slurm_spank_task_exit",
    "slurm_spank_task_init",
    "slurm_spank_task_post_fork",
    "slurm_spank_user_init",
];

const SIZE_LIMIT: u64 = 1 << 20;

/// The plugin file that was built along with this test.
fn plugin_file() -> PathBuf {
    let test = std::env::current_exe().expect("this test's own path");
    test.with_file_name("libgpu_align.so")
}

fn dynamic_symbols(file: &Path, defined: bool) -> BTreeSet<String> {
    let bytes = fs::read(file).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    elf.dynamic_symbols()
        .filter(|symbol| symbol.is_undefined() != defined)
        .filter_map(|symbol| Some(symbol.name().ok()?.to_owned()))
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn exactly_the_allowed_symbols_are_exported() {
    let exported = dynamic_symbols(&plugin_file(), true);
    let allowed: BTreeSet<String> = EXPORTS.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(exported, allowed);
    assert!(!exported.contains("init") && !exported.contains("fini"));
}

#[test]
fn no_function_of_slurm_is_needed_to_load() {
    let needed = dynamic_symbols(&plugin_file(), false);
    assert!(needed.contains("dlsym"), "the reader sees nothing: {needed:?}");
    let slurms: Vec<_> = needed
        .iter()
        .filter(|name| name.starts_with("spank_") || name.starts_with("slurm_"))
        .collect();
    assert!(slurms.is_empty(), "{slurms:?}");
}

#[test]
fn the_file_that_slurm_opens_twice_is_loaded_once() {
    let flags = dynamic(&plugin_file(), DT_FLAGS_1, |entry, endian, _| entry.d_val(endian));
    assert!(flags.iter().any(|flags| flags & u64::from(DF_1_NODELETE) != 0), "{flags:?}");
}

#[test]
fn no_library_but_the_c_runtime_is_needed() {
    let libraries = needed_libraries(&plugin_file());
    assert!(
        libraries.iter().any(|name| name.starts_with("libc.so")),
        "the reader sees nothing: {libraries:?}"
    );
    for name in libraries {
        assert!(
            ["libc.so", "libdl.so", "libpthread.so", "libm.so", "ld-linux"]
                .iter()
                .any(|known| name.starts_with(known)),
            "{name}"
        );
    }
}

/// Built by `make`, not by `cargo test`; only there does the linker leave out what nobody calls.
fn release_file() -> Option<Vec<u8>> {
    let release = plugin_file()
        .ancestors()
        .nth(3)
        .expect("the target folder")
        .join("release/libgpu_align.so");
    fs::read(release).ok()
}

#[test]
fn the_release_file_is_small() {
    if let Some(file) = release_file() {
        assert!((file.len() as u64) < SIZE_LIMIT, "{} bytes", file.len());
    }
}

/// NVML can hang, and slurmstepd with it: the plugin does not even know its name.
#[test]
fn nothing_of_the_program_is_in_the_release_file() {
    let Some(file) = release_file() else { return };
    let holds = |text: &str| file.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(holds("gpu_align"), "the reader sees nothing");
    for name in ["libnvidia-ml", "nvmlInit", "clap_builder"] {
        assert!(!holds(name), "{name}");
    }
}

/// The entries of the dynamic section that carry `tag`, as `read` sees them.
fn dynamic<T>(
    file: &Path,
    tag: u32,
    read: impl Fn(&Dyn64<Endianness>, Endianness, StringTable<'_>) -> T,
) -> Vec<T> {
    let bytes = fs::read(file).expect("the plugin file");
    let elf = ElfFile::<FileHeader64<Endianness>>::parse(&*bytes).expect("a 64-bit ELF file");
    let endian = elf.endian();
    let sections = elf.elf_header().sections(endian, &*bytes).expect("sections");
    let (entries, strings) = sections
        .dynamic(endian, &*bytes)
        .expect("a readable dynamic section")
        .expect("a dynamic section");
    let strings = sections.strings(endian, &*bytes, strings).expect("strings");
    entries
        .iter()
        .filter(|entry| entry.tag32(endian) == Some(tag))
        .map(|entry| read(entry, endian, strings))
        .collect()
}

fn needed_libraries(file: &Path) -> Vec<String> {
    dynamic(file, DT_NEEDED, |entry, endian, strings| {
        String::from_utf8_lossy(entry.string(endian, strings).expect("a name")).into_owned()
    })
}

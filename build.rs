//! Generates the C side's types and prototypes from the Slurm header of the machine that builds.
//!
//! Only what `src/spank/` uses is taken over, so that the header of any release from 21.08 to
//! 26.05 gives the same Rust. `SLURM_INCLUDE` names the folder that holds `slurm/spank.h` where
//! it is not on the compiler's path.

use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

const FUNCTIONS: &[&str] = &[
    "spank_context",
    "spank_get_item",
    "spank_getenv",
    "spank_setenv",
    "spank_option_register",
    "slurm_spank_log",
    "slurm_error",
    "slurm_info",
    "slurm_debug",
];
const TYPES: &[&str] = &["spank_item", "spank_context", "spank_option", "spank_err_t"];
const VALUES: &[&str] = &["ESPANK_.*", "SLURM_VERSION_NUMBER"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Slurm opens the file to look at its name, closes it and opens it again: it stays loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    link_unwinder();
    for name in ["SLURM_INCLUDE", "CPATH", "C_INCLUDE_PATH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let Some(include) = include_folder() else {
        println!(
            "cargo::error=slurm/spank.h was not found: install Slurm's development package \
             (Debian and Ubuntu: libslurm-dev, Red Hat and SUSE: slurm-devel) or set \
             SLURM_INCLUDE to the folder that holds slurm/spank.h."
        );
        exit(1);
    };
    println!("cargo::rerun-if-changed={}", include.join("slurm/spank.h").display());

    let mut builder = bindgen::Builder::default()
        .header_contents(
            "gpu_align_spank.h",
            "#include <slurm/slurm_version.h>\n#include <slurm/spank.h>\n",
        )
        .clang_arg(format!("-I{}", include.display()))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .prepend_enum_name(false)
        .layout_tests(false)
        .generate_comments(false)
        .merge_extern_blocks(true);
    for name in FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in VALUES {
        builder = builder.allowlist_var(name);
    }

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("spank.rs");
    let written = builder
        .generate()
        .map_err(|why| why.to_string())
        .and_then(|bindings| bindings.write_to_file(&out).map_err(|why| why.to_string()));
    if let Err(why) = written {
        let why = why.replace('\n', " ");
        println!("cargo::error=slurm/spank.h could not be turned into Rust: {why}");
        exit(1);
    }
}

/// Links the unwinder of the machine's C compiler into the file, where there is one: half of the
/// time that a launch pays for loading the plugin goes to libgcc_s.so.1, which it would load.
fn link_unwinder() {
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let asked = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output();
    let Ok(answer) = asked else {
        return;
    };
    let archive = PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim());
    // A compiler that has none answers with the bare name.
    if let Some(folder) = archive.parent().filter(|_| archive.is_file()) {
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}

/// The folder that holds `slurm/spank.h`. `SLURM_INCLUDE`, where set, is the only one asked.
fn include_folder() -> Option<PathBuf> {
    let folders = match env::var_os("SLURM_INCLUDE") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => ["CPATH", "C_INCLUDE_PATH"]
            .into_iter()
            .filter_map(env::var_os)
            .flat_map(|list| env::split_paths(&list).collect::<Vec<_>>())
            .chain(["/usr/include", "/usr/local/include"].map(PathBuf::from))
            .collect(),
    };
    folders.into_iter().find(|folder| folder.join("slurm/spank.h").is_file())
}

//! Compiles the C side of the host into a library of its own: stable Rust cannot define variadic
//! functions, and a library that is loaded with RTLD_GLOBAL offers its symbols to the plugin just
//! as libslurmfull does in srun and slurmstepd.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=src/slurm.c");
    let library = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
        .join("libspank_host_slurm.so");
    let status = cc::Build::new()
        .get_compiler()
        .to_command()
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&library)
        .arg("src/slurm.c")
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => println!("cargo::error=the C compiler failed on src/slurm.c: {status}"),
        Err(why) => println!("cargo::error=no C compiler could be run: {why}"),
    }
    println!("cargo::rustc-env=SPANK_HOST_SLURM={}", library.display());
}

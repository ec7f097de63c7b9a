//! Says which cards CUDA opens in this process: the witness of the cluster tests.
//!
//! It believes nobody: CUDA's list comes from whatever `libcuda.so.1` the
//! loader finds, the real driver's or the stand-in's, and what can be opened
//! comes from opening it. One JSON line, written at once, so that the lines of
//! many tasks never mix. It is linked to nothing but the C library and exits 0
//! whatever it finds: a finding is not a failure.
//!
//!     cuda-probe [--full-env] [--out FILE] [--sleep SECONDS]
//!
//! `--full-env` puts the whole environment in `env`, for comparison byte for
//! byte; `--out` appends the line to a file instead of writing it to standard
//! output; `--sleep` holds the process, and with it Slurm's cards, afterwards.

mod cuda;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sim_node::{DeviceFile, accessible, dev_root, openable};

#[derive(Default)]
struct Wishes {
    full_env: bool,
    out: Option<PathBuf>,
    sleep: Duration,
}

fn main() -> ExitCode {
    let told = wishes().and_then(|wishes| {
        tell(&wishes).map_err(|error| format!("cannot write the line: {error}"))?;
        thread::sleep(wishes.sleep);
        Ok(())
    });
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("cuda-probe: {problem}");
            ExitCode::from(2)
        }
    }
}

fn wishes() -> Result<Wishes, String> {
    let mut wishes = Wishes::default();
    let mut words = env::args_os().skip(1);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--full-env") => wishes.full_env = true,
            Some("--out") => {
                wishes.out = Some(words.next().ok_or("--out wants a file")?.into());
            }
            Some("--sleep") => {
                wishes.sleep = words
                    .next()
                    .and_then(|word| word.to_str()?.parse().ok())
                    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                    .ok_or("--sleep wants a number of seconds")?;
            }
            _ => {
                return Err(format!(
                    "{} is not --full-env, --out FILE or --sleep SECONDS",
                    word.to_string_lossy()
                ));
            }
        }
    }
    Ok(wishes)
}

fn tell(wishes: &Wishes) -> io::Result<()> {
    let line = format!("{}\n", findings(wishes.full_env));
    match &wishes.out {
        Some(path) => {
            OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
        }
        None => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(line.as_bytes())?;
            stdout.flush()
        }
    }
}

fn findings(full_env: bool) -> Value {
    let (open, access) = asked(&dev_root(), "nvidia", DeviceFile::Card);
    let caps = dev_root().join("nvidia-caps");
    let (caps_open, caps_access) = asked(&caps, "nvidia-cap", DeviceFile::Cap);
    let environment = environment(full_env);
    let (devices, error) = cuda::enumerate();
    json!({
        "cuda": devices,
        "cuda_error": error,
        "open": open,
        "access": access,
        "caps_open": caps_open,
        "caps_access": caps_access,
        "env": environment,
        "host": host(),
        "pid": std::process::id(),
    })
}

/// The minors that this process can open, and those that faccessat says it could.
fn asked(folder: &Path, prefix: &str, file: impl Fn(u32) -> DeviceFile) -> (Vec<u32>, Vec<u32>) {
    let minor = |name: &OsStr| name.to_str()?.strip_prefix(prefix)?.parse::<u32>().ok();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut minors: Vec<u32> = entries.filter_map(|e| minor(&e.file_name())).collect();
    minors.sort_unstable();
    let that = |test: fn(DeviceFile) -> bool| {
        let passing = minors.iter().copied().filter(|&minor| test(file(minor)));
        passing.collect()
    };
    (that(openable), that(accessible))
}

/// The variables by name. Bytes that are no UTF-8 are kept as `\xNN`.
fn environment(full: bool) -> BTreeMap<String, String> {
    let readable = |text: &OsStr| match text.to_str() {
        Some(text) => text.to_owned(),
        None => text.as_bytes().escape_ascii().to_string(),
    };
    let wanted = |name: &str| {
        full || name.starts_with("GPU_ALIGN_")
            || name.starts_with("SLURM")
            || matches!(name, "CUDA_VISIBLE_DEVICES" | "CUDA_DEVICE_ORDER")
    };
    env::vars_os()
        .map(|(name, value)| (readable(&name), readable(&value)))
        .filter(|(name, _)| wanted(name))
        .collect()
}

/// The node's name: Slurm's where there is one, since several simulated nodes share a host name.
fn host() -> String {
    let kernel = || fs::read_to_string("/proc/sys/kernel/hostname");
    env::var("SLURMD_NODENAME")
        .or_else(|_| kernel())
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

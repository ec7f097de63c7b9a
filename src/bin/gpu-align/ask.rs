//! Questions that can hang, crash or leave traces in the process that asks:
//! CUDA's and NVML's. Each is asked in a child, this same program under a
//! hidden command, which answers in JSON and is killed at its deadline, and by
//! whoever kills the asker's process group: nobody else would end one that hangs.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use gpu_align::cuda::Answer;
use gpu_align::node::child::{self, ChildError, Group, Output};
use gpu_align::node::driver::{self, DriverError};
use gpu_align::node::stock::{Fault, FaultKind, Stock};
use serde::de::DeserializeOwned;

use crate::inside::{driver_api, usage};

/// Answer one question about this process, in JSON; for gpu-align's own use
#[derive(Args)]
pub struct Ask {
    question: Question,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Question {
    /// What CUDA enumerates
    Cuda,
    /// Memory, load and processes, from NVML
    Usage,
    /// The node's cards, from the driver and NVML
    Stock,
}

impl Ask {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let answer = match self.question {
            Question::Cuda => serde_json::to_string(&driver_api::enumerate())?,
            Question::Usage => serde_json::to_string(&usage::look())?,
            Question::Stock => serde_json::to_string(&Stock::take(Path::new("/"))?)?,
        };
        io::stdout().write_all(answer.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// CUDA's first start on a node without persistence mode takes seconds.
const PATIENCE: Duration = Duration::from_secs(20);
const MAX_BYTES: usize = 4 << 20;
const MYSELF: &str = "/proc/self/exe";

/// What CUDA enumerates under an environment.
pub fn cuda(environment: &BTreeMap<String, String>) -> Result<Answer, String> {
    ask("cuda", "CUDA", environment)
}

pub fn usage(environment: &BTreeMap<String, String>) -> Result<usage::Usage, String> {
    ask::<Result<_, String>>("usage", "NVML", environment)?
}

fn ask<T: DeserializeOwned>(
    question: &str,
    whom: &str,
    environment: &BTreeMap<String, String>,
) -> Result<T, String> {
    let environment: Vec<(&str, &OsStr)> =
        environment.iter().map(|(name, value)| (name.as_str(), OsStr::new(value))).collect();
    let output = answer(question, &environment, PATIENCE).map_err(|why| match why {
        ChildError::Deadline { allowed, .. } => format!(
            "{whom} did not answer within {} s; the driver may be stuck, ask the admin",
            allowed.as_secs()
        ),
        ChildError::Signal { signal, .. } => {
            format!(
                "{whom}'s library crashed (signal {signal}); ask the admin to look at the driver"
            )
        }
        other => format!("{whom} could not be asked: {other}"),
    })?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        format!("{whom}'s library ended the process that asked it (exit status {})", output.code)
    })
}

/// The node's stock. While NVML hangs or crashes it is the driver's alone, with
/// the reason.
pub fn stock(root: &Path, deadline: Instant) -> Result<Stock, DriverError> {
    let allowed = deadline.saturating_duration_since(Instant::now());
    let fault = |kind, why: String| Stock::without_nvml(root, Fault { kind, why });
    // A driver that is not there needs no child to tell.
    driver::version(root)?;
    // Where it is set, NVML may lie there only, as in a container.
    let libraries = env::var_os("LD_LIBRARY_PATH");
    let environment: Vec<(&str, &OsStr)> =
        libraries.iter().map(|path| ("LD_LIBRARY_PATH", path.as_os_str())).collect();
    match answer("stock", &environment, allowed) {
        Ok(output) => match serde_json::from_slice(&output.stdout) {
            Ok(stock) => Ok(stock),
            Err(error) => fault(
                FaultKind::Nonsense,
                format!("gpu-align ask stock does not answer in JSON ({error}); run it by hand"),
            ),
        },
        Err(ChildError::Deadline { allowed, .. }) => fault(
            FaultKind::NoAnswer,
            format!(
                "NVML did not answer within {:.1} s; look at the kernel log, the driver may be stuck",
                allowed.as_secs_f32()
            ),
        ),
        Err(ChildError::Signal { signal, .. }) => fault(
            FaultKind::Crashed,
            format!("NVML died by signal {signal} when it was asked; reload the driver or reboot"),
        ),
        Err(error) => {
            fault(FaultKind::Unknown, format!("{error}; run gpu-align ask stock by hand"))
        }
    }
}

fn answer(
    question: &str,
    environment: &[(&str, &OsStr)],
    allowed: Duration,
) -> Result<Output, ChildError> {
    let arguments = ["ask", question];
    child::run_with(Path::new(MYSELF), &arguments, environment, Group::Callers, allowed, MAX_BYTES)
}

//! Questions that can hang, crash or leave traces in the process that asks:
//! CUDA's and NVML's. Each is asked in a child, this same program under a
//! hidden command, which answers in JSON and is killed at its deadline.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gpu_align::cuda::Answer;
use gpu_align::node::child::{self, ChildError};
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
}

impl Ask {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let answer = match self.question {
            Question::Cuda => serde_json::to_string(&driver_api::enumerate())?,
            Question::Usage => serde_json::to_string(&usage::look())?,
        };
        io::stdout().write_all(answer.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// CUDA's first start on a node without persistence mode takes seconds.
const PATIENCE: Duration = Duration::from_secs(20);
const MAX_BYTES: usize = 4 << 20;

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
    let myself = Path::new("/proc/self/exe");
    let output = child::run_with(myself, &["ask", question], &environment, PATIENCE, MAX_BYTES);
    let output = output.map_err(|why| match why {
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

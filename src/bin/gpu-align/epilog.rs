//! `gpu-align epilog`: removes what `gpu-align prolog` left for a job.

use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::prolog::{JOBS, job_path};

const EXAMPLES: &str = "\
Exit status:
  0  always: a nonzero Epilog drains the node
  2  the options cannot be understood, with just that effect

Example:
  gpu-align epilog    what slurm/epilog.d/50-gpu-align runs";

/// Remove the job's record; run it as root from Slurm's Epilog
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Epilog {
    /// The folder of the jobs' records
    #[arg(long, value_name = "PATH", default_value = JOBS)]
    jobs: PathBuf,
}

impl Epilog {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let job = env::var("SLURM_JOB_ID").unwrap_or_default();
        match job_path(&self.jobs, &job).map(fs::remove_file) {
            None => {
                eprintln!("gpu-align: epilog: SLURM_JOB_ID names no job; Slurm's Epilog sets it")
            }
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                eprintln!("gpu-align: epilog: the record of job {job} cannot be removed: {error}");
            }
            Some(_) => {}
        }
        Ok(ExitCode::SUCCESS)
    }
}

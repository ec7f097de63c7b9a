//! `gpu-align verify`: what was set, what is set now, what CUDA makes of it,
//! and what the kernel and NVML say; then, if asked, the program itself.

pub mod checks;
mod devices;
mod environment;
mod expect;
pub mod sharing;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use crate::inside::apart::apart;
use crate::inside::env::{self, Env};
use crate::inside::gather;
use crate::inside::hands;
use crate::inside::mps;
use crate::inside::scene::{ORDER, VISIBLE};
use crate::inside::screen::Screen;
use crate::{ask, become_command};

use checks::{Check, Evidence, Other, State};
use expect::Expected;
use sharing::TaskOf;

const EXAMPLES: &str = "\
Exit status:
  0    everything that was compared agrees
  1    something does not
  2    nothing disagrees, but CUDA or the driver could not be looked at, or the process
       of --pid is in another task or container
  126  COMMAND cannot be started
  127  COMMAND is not there
With COMMAND the exit status is the command's, unless the check kept it from starting.

Examples:
  gpu-align verify
  srun --gpu-align gpu-align verify -- python train.py
  gpu-align verify --expect rank=3,1
  gpu-align verify --expect GPU-8521313e-ac61-4b15-8300-36430748cd46 -- ./app
  gpu-align verify --pid 4711";

/// Compare what was set with what CUDA, NVML and the kernel really give
///
/// One line for each check. Says the reason of each mismatch: a variable changed after
/// launch and by whom, a list that ends early and where, a card out of reach, a card
/// listed twice, two tasks on one card.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Verify {
    /// Fail unless CUDA enumerates these, in this order: UUIDs, or rank=3,1 (nvidia-smi's
    /// indices on the host)
    #[arg(long, value_name = "CARDS")]
    expect: Option<Expected>,
    /// With COMMAND: start it in any case
    #[arg(long, requires = "command")]
    warn: bool,
    /// Check another process of the same user, by what it was started with; only its
    /// environment where it is in another task or container than this process
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Print JSON for programs
    #[arg(long, conflicts_with = "command")]
    json: bool,
    /// Become this command if the check finds nothing wrong
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Verify {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let root = Path::new("/");
        let pid = self.pid.unwrap_or_else(std::process::id);
        let env = match self.pid {
            None => Env::own(),
            Some(pid) => match Env::of_process(root, pid) {
                Ok(env) => env,
                Err(why) => {
                    eprintln!(
                        "gpu-align: process {pid} cannot be looked at ({why}); give a process of \
                         your own on this node"
                    );
                    return Ok(ExitCode::from(2));
                }
            },
        };
        let usage = ask::usage(&Env::own().0);
        let apart = self.pid.and_then(|pid| apart(root, std::process::id(), pid));
        let scene = match &apart {
            None => gather::scene(env),
            Some(why) => gather::blind_scene(env, why),
        };
        let names = [VISIBLE, ORDER];
        let mut hits = hands::assignments(&hands::shell_files(root, &scene.env), &names);
        hits.extend(hands::task_prolog(&scene.env, &names));
        if apart.is_none() && environment::was_changed(&scene) == Some(true) {
            hits.extend(hands::batch_script(&scene.env, &names).unwrap_or_default());
        }
        let checks = checks::checks(&Evidence {
            scene: &scene,
            usage: &usage,
            above: &hands::ancestors(root, pid),
            hits: &hits,
            mps: &mps::look(root, &scene.env),
            task_of: &|pid| TaskOf::read(root, pid),
            other: self.pid.map(|pid| Other {
                pid,
                command: env::command(root, pid).unwrap_or_default(),
                apart: apart.is_some(),
            }),
            expected: self.expect.as_ref(),
        });
        let code = exit_code(&checks);
        if self.command.is_empty() {
            let screen = Screen::stdout();
            crate::print(&match self.json {
                true => json(&checks, code)?,
                false => text(&checks, screen),
            });
            return Ok(ExitCode::from(code));
        }
        for check in checks.iter().filter(|check| check.state.is_doubtful()) {
            eprintln!("gpu-align: {}: {}: {}", check.state.word(), check.name, check.says);
        }
        if code != 0 && !self.warn {
            eprintln!(
                "gpu-align: {} was not started; give --warn to start it in any case",
                self.command[0].to_string_lossy()
            );
            return Ok(ExitCode::from(code));
        }
        Ok(become_command(&self.command, &[]))
    }
}

fn exit_code(checks: &[Check]) -> u8 {
    let any = |what: fn(&Check) -> bool| checks.iter().any(what);
    match (any(|c| c.state == State::Wrong), any(|c| c.state == State::Unseen && c.needed)) {
        (true, _) => 1,
        (false, true) => 2,
        (false, false) => 0,
    }
}

fn text(checks: &[Check], screen: Screen) -> String {
    const NAME: usize = 10;
    let mut out = String::new();
    for check in checks {
        let word = check.state.word();
        let lines =
            screen.sentence(&format!("{word:<9} {:<NAME$}", check.name), NAME + 11, &check.says);
        let painted = match check.state {
            State::Fine => screen.good(word),
            State::Wrong => screen.bad(word),
            State::Unseen | State::Note => screen.faint(word),
        };
        out += &lines.replacen(word, &painted, 1);
    }
    out
}

fn json(checks: &[Check], code: u8) -> anyhow::Result<String> {
    let document = serde_json::json!({ "schema": 1, "exit": code, "checks": checks });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

#[cfg(test)]
mod tests;

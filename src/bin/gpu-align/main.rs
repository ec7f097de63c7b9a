//! `gpu-align`: the program beside the plugin. It takes stock of a node through
//! NVML, serves Prolog, Epilog and TaskProlog, checks a node's setup, and
//! answers users inside a job.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{self, ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use inside::screen::Screen;

mod ask;
mod check;
mod doctor;
mod drain;
mod epilog;
mod exec;
mod generate;
mod given;
mod help;
mod inside;
mod inventory;
mod job;
mod numbering;
mod pick;
mod prolog;
mod release;
mod show;
mod task_prolog;
mod verify;

const EXAMPLES: &str = "\
Exit status:
  0     done, and nothing to say against it
  1, 2  each command's own, see gpu-align COMMAND --help
  2     the arguments cannot be understood

Environment:
  COLUMNS          the width to write for [default: the terminal's, else 100]
  NO_COLOR         where it is set, no colours; they are for terminals only
  SLURM_GPU_ALIGN  what to do, as in srun --gpu-align=WORDS; exec and task-prolog hear it
  SLURM_CONF       where Slurm's configuration lies

Examples:
  gpu-align show                  in a job: which cards can this process use
  gpu-align doctor                lost: what is wrong, why, and what to do
  gpu-align verify -- ./app       start the program only if the cards are the right ones
  sudo gpu-align inventory        on a node: every card by all its names";

/// Says which NVIDIA card is whose: in a job, on a node, for the gpu-align plugin
#[derive(Parser)]
#[command(version, propagate_version = true, arg_required_else_help = true)]
#[command(after_long_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Show(show::Show),
    Verify(verify::Verify),
    Doctor(doctor::Doctor),
    Pick(pick::Pick),
    Exec(exec::Exec),
    Inventory(inventory::Inventory),
    Prolog(prolog::Prolog),
    Epilog(epilog::Epilog),
    Check(check::Check),
    TaskProlog(task_prolog::TaskProlog),
    #[command(hide = true)]
    Ask(ask::Ask),
    #[command(hide = true)]
    Generate(generate::Generate),
}

fn main() -> ExitCode {
    let program = help::fitted(Arguments::command(), Screen::stdout());
    let arguments = Arguments::from_arg_matches(&program.get_matches());
    match run(arguments.unwrap_or_else(|why| why.exit())) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("gpu-align: {why:#}");
            ExitCode::from(COULD_NOT_LOOK)
        }
    }
}

/// What every command answers when it could not do its work; also clap's, for
/// arguments that it does not understand.
const COULD_NOT_LOOK: u8 = 2;

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Show(command) => command.run(),
        Command::Verify(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Pick(command) => command.run(),
        Command::Exec(command) => command.run(),
        Command::Inventory(command) => command.run(),
        Command::Prolog(command) => command.run(),
        Command::Epilog(command) => command.run(),
        Command::Ask(command) => command.run(),
        Command::Generate(command) => command.run(Arguments::command()),
        Command::Check(command) => command.run(),
        Command::TaskProlog(command) => command.run(),
    }
}

/// Writes to standard output. A reader that has seen enough closes the pipe: no
/// reason to complain.
fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// Becomes a command, with these variables set; comes back only if it cannot be started.
fn become_command(command: &[OsString], variables: &[(&str, String)]) -> ExitCode {
    let (program, arguments) = command.split_first().expect("clap asks for a command");
    let variables = variables.iter().map(|(name, value)| (name, value));
    let why = process::Command::new(program).args(arguments).envs(variables).exec();
    eprintln!("gpu-align: {} cannot be started ({why}); check its path", program.to_string_lossy());
    ExitCode::from(if why.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

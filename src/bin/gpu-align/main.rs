//! `gpu-align`: the program beside the plugin. It takes stock of a node through
//! NVML, serves Prolog, Epilog and TaskProlog, and checks a node's setup.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod check;
mod drain;
mod epilog;
mod inventory;
mod job;
mod prolog;
mod task_prolog;

/// Takes stock of a node's NVIDIA cards for the gpu-align plugin, and checks its setup
#[derive(Parser)]
#[command(version, propagate_version = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Inventory(inventory::Inventory),
    Prolog(prolog::Prolog),
    Epilog(epilog::Epilog),
    Check(check::Check),
    TaskProlog(task_prolog::TaskProlog),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
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
        Command::Inventory(command) => command.run(),
        Command::Prolog(command) => command.run(),
        Command::Epilog(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::TaskProlog(command) => command.run(),
    }
}

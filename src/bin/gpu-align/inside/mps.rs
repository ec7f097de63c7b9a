//! The MPS control daemon: whether one runs where this environment's programs
//! look for it, and with which cards it was started.
//!
//! It leaves its pid beside its sockets, and /proc says what it was started with:
//! nothing is sent to it and no program is run, so nothing can hang.

use std::path::Path;

use gpu_align::device::clip;
use gpu_align::node::text;

use super::env::Env;
use super::scene::VISIBLE;

pub const FOLDER: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Where CUDA looks if the variable is unset.
const USUAL: &str = "/tmp/nvidia-mps";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// None runs there, so CUDA goes on without.
    Nothing,
    Runs {
        pid: u32,
        started_with: StartedWith,
    },
    /// A sentence.
    NotLooked(String),
}

/// The CUDA_VISIBLE_DEVICES of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartedWith {
    All,
    List(String),
    /// The daemon is another user's, so its environment cannot be read.
    Hidden,
}

impl Seen {
    /// The daemon and what it was started with, if one runs.
    pub fn says(&self) -> Option<String> {
        let Seen::Runs { pid, started_with } = self else { return None };
        let list = match started_with {
            StartedWith::All => String::new(),
            StartedWith::List(list) => format!(", started with {VISIBLE}={list}"),
            StartedWith::Hidden => {
                ", started by another user with cards that cannot be told".into()
            }
        };
        Some(format!("the MPS daemon with pid {pid}{list}"))
    }

    pub fn unseen(&self) -> Option<String> {
        match self {
            Seen::NotLooked(why) => Some(why.clone()),
            _ => None,
        }
    }
}

pub fn look(root: &Path, env: &Env) -> Seen {
    let folder = env.get(FOLDER).filter(|folder| !folder.is_empty()).unwrap_or(USUAL);
    let file = Path::new(folder).join("nvidia-cuda-mps-control.pid");
    let said = text::read(&root.join(file.strip_prefix("/").unwrap_or(&file)), 32);
    let pid = match said {
        Ok(said) => said.trim().parse::<u32>().ok(),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => None,
        Err(why) => {
            let file = clip(&file.to_string_lossy());
            return Seen::NotLooked(format!("the MPS daemon: {file} cannot be read ({why})"));
        }
    };
    // The kernel keeps 15 letters of a program's name.
    let is_daemon = |pid: &u32| {
        text::read(&root.join(format!("proc/{pid}/comm")), 32)
            .is_ok_and(|name| name.starts_with("nvidia-cuda-mps"))
    };
    match pid {
        None => Seen::Nothing,
        // A daemon takes its file away when it is stopped.
        Some(pid) if !is_daemon(&pid) => Seen::NotLooked(format!(
            "the MPS daemon: {} names process {pid}, which is none here; it was killed, or runs \
             outside of this container",
            clip(&file.to_string_lossy())
        )),
        Some(pid) => Seen::Runs {
            pid,
            started_with: match Env::of_process(root, pid) {
                Err(_) => StartedWith::Hidden,
                Ok(env) => {
                    env.get(VISIBLE).map_or(StartedWith::All, |list| StartedWith::List(clip(list)))
                }
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn env(pairs: &[(&str, &str)]) -> Env {
        Env(pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    #[test]
    fn a_daemon_is_known_by_its_pid_and_its_name() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &[u8]| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let usual = || look(root.path(), &env(&[]));
        assert_eq!(usual(), Seen::Nothing);
        write("tmp/nvidia-mps/nvidia-cuda-mps-control.pid", b"77\n");
        assert!(matches!(usual(), Seen::NotLooked(_)));
        write("proc/77/comm", b"nvidia-cuda-mps\n");
        assert_eq!(usual(), Seen::Runs { pid: 77, started_with: StartedWith::Hidden });
        write("proc/77/environ", b"A=b\0");
        assert_eq!(usual(), Seen::Runs { pid: 77, started_with: StartedWith::All });
        write("proc/77/environ", b"CUDA_VISIBLE_DEVICES=2,3\0");
        let started_with = StartedWith::List("2,3".into());
        assert_eq!(usual(), Seen::Runs { pid: 77, started_with });
        assert_eq!(look(root.path(), &env(&[(FOLDER, "/tmp/mps")])), Seen::Nothing);
        // The daemon was killed, and its number is another program's.
        write("proc/77/comm", b"bash\n");
        assert!(usual().unseen().unwrap().contains("names process 77, which is none here"));
        fs::create_dir_all(root.path().join("tmp/mps/nvidia-cuda-mps-control.pid")).unwrap();
        assert!(look(root.path(), &env(&[(FOLDER, "/tmp/mps")])).unseen().is_some());
    }
}

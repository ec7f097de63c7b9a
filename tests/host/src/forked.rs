//! Playing a step in forked processes, as slurmstepd does.
//!
//! One process is the step, each task is a child of it. All tasks are forked before the first
//! `task_post_fork` and wait on a socket, so that every `task_post_fork` is over before any
//! `task_init`, and the `task_init` of all tasks run at the same time. Nobody is waited for longer
//! than [`PATIENCE`].

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Host;
use crate::play::{Act, Player, acts, one_at_a_time, slurm_for};
use crate::stderr::{Capture, inheritable};
use crate::step::{Answer, Bytes, Ended, Line, Played, Step};

const PATIENCE: Duration = Duration::from_secs(20);

/// What a task tells the step's process after its hook.
#[derive(Deserialize, Serialize)]
struct Told {
    answers: Vec<Answer>,
    log: Vec<Line>,
    ended: Ended,
}

impl Host {
    /// Plays the step in forked processes. The plugin's state in this process does not change.
    pub fn play_forked(&self, step: &Step) -> io::Result<Played> {
        let acts = acts(step)?;
        let _alone = one_at_a_time();
        let own = Capture::new()?;
        let tasks: Vec<Capture> =
            step.tasks.iter().map(|_| Capture::new()).collect::<io::Result<_>>()?;
        let (reader, writer) = pipe()?;
        // SAFETY: the child uses only what it was given and leaves through _exit.
        let child = unsafe { libc::fork() };
        match child {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(reader);
                self.be_the_step(step, &acts, &own, &tasks, writer);
                // SAFETY: no destructor of the parent's may run here.
                unsafe { libc::_exit(0) }
            }
            child => {
                drop(writer);
                let told = read_until_end(reader, Instant::now() + PATIENCE);
                if told.is_err() {
                    // SAFETY: our own child, not yet waited for.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                }
                wait(child);
                let mut played = match &told {
                    Ok(json) => serde_json::from_slice(json).map_err(io::Error::other),
                    Err(_) => Ok(Played::default()),
                }
                .unwrap_or_default();
                played.hung = told.is_err();
                played.tasks.resize(step.tasks.len(), Ended::default());
                played.stderr = Bytes(own.text());
                for (task, capture) in played.tasks.iter_mut().zip(&tasks) {
                    task.stderr = Bytes(capture.text());
                }
                Ok(played)
            }
        }
    }

    fn be_the_step(
        &self,
        step: &Step,
        acts: &[Act],
        own: &Capture,
        captures: &[Capture],
        mut writer: File,
    ) {
        die_with_parent();
        own.take_stderr();
        let before = inheritable();
        let slurm = slurm_for(step, true);
        let mut player = Player::new(&self.file, step, &slurm);
        let mut tasks: Vec<Child> = Vec::new();
        let copies_before = captures.first().map_or(0, Capture::copies);
        let mut copies_after = None;
        for act in acts {
            if act.is_task() && act.hook != "task_exit" && tasks.is_empty() {
                tasks = fork_tasks(&mut player, captures, &before);
            }
            match act.hook.as_str() {
                "user_init" => {
                    if let Some(first) = captures.first() {
                        first.take_stderr();
                    }
                    player.act(act);
                    own.take_stderr();
                }
                "task_init" | "task_init_privileged" => in_tasks(&mut player, &mut tasks, act),
                _ => player.act(act),
            }
            if act.hook == "task_post_fork" {
                let now = captures.first().map_or(0, Capture::copies);
                copies_after = Some(now.saturating_sub(copies_before));
            }
        }
        for task in tasks {
            task.end();
        }
        let mut played = player.played();
        played.task_log_copies = copies_after.unwrap_or(0);
        let json = serde_json::to_vec(&played).unwrap_or_default();
        let _ = writer.write_all(&json);
    }
}

/// A task's process, seen from the step's.
struct Child {
    pid: i32,
    line: UnixStream,
}

impl Child {
    fn end(self) {
        drop(self.line);
        wait(self.pid);
    }
}

fn fork_tasks(player: &mut Player<'_>, captures: &[Capture], before: &[i32]) -> Vec<Child> {
    let mut children: Vec<Child> = Vec::new();
    for (place, capture) in captures.iter().enumerate() {
        let Ok((ours, theirs)) = UnixStream::pair() else {
            break;
        };
        // SAFETY: the child uses only what it was given and leaves through _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            die_with_parent();
            children.clear();
            drop(ours);
            capture.take_stderr();
            if !player.step.tasks[place].dies {
                be_a_task(player, place, theirs, before);
            }
            // SAFETY: no destructor of the parent's may run here.
            unsafe { libc::_exit(0) }
        }
        let _ = ours.set_read_timeout(Some(PATIENCE / 2));
        player.pids[place] = pid;
        children.push(Child { pid, line: ours });
    }
    children
}

/// Waits for the word, runs the hook, tells what came of it; until the line is closed.
fn be_a_task(player: &mut Player<'_>, place: usize, mut line: UnixStream, before: &[i32]) {
    player.pids[place] = crate::play::own_pid();
    player.answers.clear();
    player.slurm.log.borrow_mut().clear();
    let mut word = [0];
    while line.read_exact(&mut word).is_ok() {
        match word[0] {
            b'p' => player.hook("task_init_privileged", Some(place)),
            _ => player.task_init(place),
        }
        let mut ended = player.tasks[place].clone();
        ended.inherited = inheritable()
            .into_iter()
            .filter(|fd| !before.contains(fd))
            .map(|fd| {
                let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
                format!("{fd} {}", link.unwrap_or_default().display())
            })
            .collect();
        let told = Told {
            answers: std::mem::take(&mut player.answers),
            log: player.slurm.log.take(),
            ended,
        };
        let json = serde_json::to_vec(&told).unwrap_or_default();
        let length = u32::try_from(json.len()).unwrap_or(0).to_le_bytes();
        if line.write_all(&length).and_then(|()| line.write_all(&json)).is_err() {
            return;
        }
    }
}

/// The same hook in several tasks at the same time.
fn in_tasks(player: &mut Player<'_>, children: &mut [Child], act: &Act) {
    let word = if act.hook == "task_init" { b"i" } else { b"p" };
    let tasks = act.tasks(player.step);
    for &task in &tasks {
        if let Some(child) = children.get_mut(task) {
            let _ = send_without_signal(&child.line, word);
        }
    }
    for &task in &tasks {
        let told = children.get_mut(task).and_then(|child| listen(&mut child.line).ok());
        match told {
            Some(told) => {
                player.answers.extend(told.answers);
                player.slurm.log.borrow_mut().extend(told.log);
                player.tasks[task] = told.ended;
            }
            None => {
                player.tasks[task].lost = true;
                if let Some(child) = children.get(task) {
                    // SAFETY: our own child, not yet waited for.
                    unsafe { libc::kill(child.pid, libc::SIGKILL) };
                }
            }
        }
    }
}

fn send_without_signal(line: &UnixStream, word: &[u8]) -> bool {
    let fd = line.as_raw_fd();
    // SAFETY: `word` is only read.
    unsafe { libc::send(fd, word.as_ptr().cast(), word.len(), libc::MSG_NOSIGNAL) == 1 }
}

fn listen(line: &mut UnixStream) -> io::Result<Told> {
    let mut length = [0; 4];
    line.read_exact(&mut length)?;
    let mut json = vec![0; usize::try_from(u32::from_le_bytes(length)).unwrap_or(0)];
    line.read_exact(&mut json)?;
    serde_json::from_slice(&json).map_err(io::Error::other)
}

/// Reads to the end of the stream, or fails at the deadline.
fn read_until_end(mut reader: File, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let mut ask = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, ours.
        if unsafe { libc::poll(&raw mut ask, 1, i32::try_from(left).unwrap_or(i32::MAX)) } < 1 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut part = [0; 65536];
        match reader.read(&mut part)? {
            0 => return Ok(bytes),
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
}

fn pipe() -> io::Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which nobody else owns once they are made.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])))
    }
}

fn die_with_parent() {
    // SAFETY: sets a flag of this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

fn wait(child: i32) {
    let mut status = 0;
    // SAFETY: our own child, waited for once; interrupted waits are repeated.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

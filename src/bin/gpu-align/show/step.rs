//! `gpu-align show --step`: the tasks of a step on one node, gathered by the
//! task with local rank 0 over an abstract socket. Nothing is left behind, and
//! a socket that another user holds is found out by its credentials.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Uid, getuid};
use serde::{Deserialize, Serialize};

use super::View;
use crate::inside::scene::Scene;
use crate::inside::screen::{Screen, count, number, word};

/// How long local rank 0 waits for the others, and they for it.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(10);
/// A task's view of a node of 128 cards is a tenth of this.
const MAX_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Said {
    rank: usize,
    local: usize,
    /// The CUDA index of the task's own device, if gpu-align says so.
    own: Option<usize>,
    view: View,
}

/// What the tasks of one node said.
#[derive(Debug, Serialize)]
pub struct Gathered {
    schema: u32,
    node: String,
    place: Option<String>,
    tasks: usize,
    said: Vec<Said>,
    /// Local ranks that did not speak in time.
    missing: Vec<usize>,
}

/// Gathers; `None` in every task but local rank 0.
pub fn gather(scene: &Scene, view: View) -> anyhow::Result<Option<Gathered>> {
    let env = &scene.env;
    let (Some(job), Some(step), Some(tasks)) =
        (env.get("SLURM_JOB_ID"), env.get("SLURM_STEP_ID"), scene.tasks_here())
    else {
        bail!("--step gathers the tasks of a Slurm step and this is none; start it with srun");
    };
    let local =
        env.number("SLURM_LOCALID").context("SLURM_LOCALID is not set; start it with srun")?;
    let card = env.get("GPU_ALIGN_CARD");
    let own = card.and_then(|card| {
        let row = view.devices.iter().find(|row| row.uuid.as_deref() == Some(card))?;
        row.cuda
    });
    let rank = env.number("SLURM_PROCID").unwrap_or(local);
    let said = Said { rank, local, own, view };
    let user = getuid().as_raw();
    let name = format!("gpu-align/{user}/{job}.{step}/{}", scene.node_name());
    let address = SocketAddr::from_abstract_name(name).context("the socket's name is not valid")?;
    if local != 0 {
        tell(&address, &said, getuid(), PATIENCE)?;
        return Ok(None);
    }
    let place = said.view.place.clone();
    let mut heard = listen(&address, said, tasks, PATIENCE)?;
    let missing = (0..tasks).filter(|local| !heard.contains_key(local)).collect();
    let said: Vec<Said> = std::mem::take(&mut heard).into_values().collect();
    Ok(Some(Gathered { schema: 1, node: scene.node_name(), place, tasks, said, missing }))
}

/// Tells local rank 0, if it is the same user's: another one could have taken
/// the socket's name.
fn tell(address: &SocketAddr, said: &Said, user: Uid, patience: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    let mut stream = loop {
        match connect(address, patience) {
            Ok(stream) => break stream,
            Err(why) if Instant::now() > deadline => {
                bail!("local rank 0 of this step does not listen ({why}); run --step in every task")
            }
            Err(_) => thread::sleep(LOOK),
        }
    };
    let listener = socket_peercred(&stream).context("who listens cannot be told")?.uid;
    if listener != user {
        bail!(held_by(listener));
    }
    stream
        .write_all(&serde_json::to_vec(said)?)
        .context("local rank 0 of this step does not read; run --step in every task again")
}

fn held_by(user: Uid) -> String {
    format!(
        "user {} holds the socket on which local rank 0 of this step should listen; nothing was \
         told to it: report it to the admin",
        user.as_raw()
    )
}

/// Connects; neither this nor a later write takes longer than `patience` where
/// nobody answers.
fn connect(address: &SocketAddr, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    let name = address.as_abstract_name().unwrap_or_default();
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket.into())
}

/// Hears every other task; one that connects and says nothing holds up none
/// but itself.
fn listen(
    address: &SocketAddr,
    own: Said,
    tasks: usize,
    patience: Duration,
) -> anyhow::Result<BTreeMap<usize, Said>> {
    let deadline = Instant::now() + patience;
    let listener = UnixListener::bind_addr(address).map_err(|_| {
        let holder = connect(address, LOOK).ok().and_then(|stream| socket_peercred(&stream).ok());
        match holder.map(|holder| holder.uid).filter(|&uid| uid != getuid()) {
            Some(stranger) => anyhow!(held_by(stranger)),
            None => {
                anyhow!("another process of this step gathers already; run one --step at a time")
            }
        }
    })?;
    listener.set_nonblocking(true)?;
    let mut heard = BTreeMap::from([(own.local, own)]);
    let mut speakers: Vec<Speaker> = Vec::new();
    while heard.len() < tasks && Instant::now() < deadline {
        while let Ok((stream, _)) = listener.accept() {
            speakers.extend(Speaker::of(stream));
        }
        let mut silent = true;
        speakers.retain_mut(|speaker| {
            let spoken = speaker.hear();
            silent &= spoken == Spoken::Nothing;
            if spoken == Spoken::All {
                let said = speaker.said().filter(|said| said.local < tasks);
                heard.extend(said.map(|said| (said.local, said)));
            }
            spoken != Spoken::All
        });
        if silent {
            thread::sleep(LOOK);
        }
    }
    Ok(heard)
}

/// Another task, as far as it has spoken.
struct Speaker {
    stream: UnixStream,
    bytes: Vec<u8>,
}

#[derive(PartialEq, Eq)]
enum Spoken {
    Nothing,
    APart,
    All,
}

impl Speaker {
    /// `None` for another user's process: a stranger is not listened to.
    fn of(stream: UnixStream) -> Option<Speaker> {
        let user = socket_peercred(&stream).ok()?.uid;
        stream.set_nonblocking(true).ok()?;
        (user == getuid()).then_some(Speaker { stream, bytes: Vec::new() })
    }

    /// Takes what is there, without waiting.
    fn hear(&mut self) -> Spoken {
        let mut part = [0; 64 << 10];
        match self.stream.read(&mut part) {
            Ok(n) if n > 0 && self.bytes.len() + n <= MAX_BYTES => {
                self.bytes.extend_from_slice(&part[..n]);
                Spoken::APart
            }
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => Spoken::Nothing,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => Spoken::APart,
            _ => Spoken::All,
        }
    }

    /// `None` where it is not to be understood, or broken off.
    fn said(&self) -> Option<Said> {
        serde_json::from_slice(&self.bytes).ok()
    }
}

impl Gathered {
    pub fn text(&self, screen: Screen) -> String {
        let place = self.place.as_ref().map(|place| format!(" {place}")).unwrap_or_default();
        let head = format!("gpu-align: {}{place}: {}", self.node, count(self.tasks, "task"));
        let mut out = screen.sentence("", 0, &head);
        let heads = [
            number("rank"),
            number("local"),
            number("cuda"),
            word("own"),
            number("card"),
            number("minor"),
            word("bus"),
            word("uuid"),
        ];
        out += &screen.table(&heads, &self.rows());
        for said in self.said.iter().filter(|said| said.usable() == 0) {
            out += &screen.sentence("", 0, &format!("rank {} can use no device", said.rank));
        }
        for (uuid, ranks) in self.shared() {
            out += &screen.sentence("", 0, &format!("ranks {ranks} share {uuid}"));
        }
        for local in &self.missing {
            let text = format!("local rank {local} did not speak within {} s", PATIENCE.as_secs());
            out += &screen.sentence("not looked at:", 15, &text);
        }
        out
    }

    /// One row for each device of a task; tasks that see the same are one.
    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut done: Vec<&Vec<super::Row>> = Vec::new();
        for said in &self.said {
            if done.contains(&&said.view.devices) {
                continue;
            }
            done.push(&said.view.devices);
            let alike: Vec<&Said> =
                self.said.iter().filter(|s| s.view.devices == said.view.devices).collect();
            let list = |what: fn(&Said) -> usize| {
                let numbers: Vec<usize> = alike.iter().map(|said| what(said)).collect();
                crate::inside::scene::cpu_list(&numbers)
            };
            for row in said.view.devices.iter().filter(|row| row.cuda.is_some() || row.reach) {
                let dash = |n: Option<usize>| n.map_or("-".to_owned(), |n| n.to_string());
                let own = alike.iter().filter(|s| s.own.is_some() && s.own == row.cuda);
                let own: Vec<usize> = own.map(|said| said.rank).collect();
                rows.push(vec![
                    list(|said| said.rank),
                    list(|said| said.local),
                    dash(row.cuda),
                    crate::inside::scene::cpu_list(&own),
                    dash(row.card),
                    row.minor.map_or("-".into(), |minor| minor.to_string()),
                    row.pci.clone(),
                    row.uuid.clone().unwrap_or_else(|| "-".into()),
                ]);
            }
        }
        rows
    }

    /// Devices that are several ranks' own, or the only one that each sees.
    fn shared(&self) -> Vec<(String, String)> {
        let mut ranks: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for said in &self.said {
            let only = (said.usable() == 1).then_some(0);
            let own = said.own.or(only);
            let row = said.view.devices.iter().find(|row| row.cuda.is_some() && row.cuda == own);
            if let Some(uuid) = row.and_then(|row| row.uuid.clone()) {
                ranks.entry(uuid).or_default().push(said.rank);
            }
        }
        ranks.retain(|_, ranks| ranks.len() > 1);
        let text = |ranks: Vec<usize>| crate::inside::scene::cpu_list(&ranks);
        ranks.into_iter().map(|(uuid, of)| (uuid, text(of))).collect()
    }
}

impl Said {
    fn usable(&self) -> usize {
        self.view.devices.iter().filter(|row| row.cuda.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::simulated::{SCREEN, golden, node, scene};

    const SHORT: Duration = Duration::from_millis(200);

    /// A socket that somebody listens on and nobody reads from.
    fn deaf(name: &str) -> (SocketAddr, UnixListener) {
        let name = format!("gpu-align-test/{}/{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        (address, listener)
    }

    /// What a task says, `visible` of it.
    fn said(visible: &str) -> Said {
        let env = [("SLURMD_NODENAME", "n1"), ("CUDA_VISIBLE_DEVICES", visible)];
        let view = View::of(&scene(&node("tidy4"), &[0], &env), false);
        Said { rank: 1, local: 1, own: None, view }
    }

    #[test]
    fn a_stranger_who_listens_is_named_and_told_nothing() {
        let (address, listener) = deaf("stranger");
        let me = Uid::from_raw(getuid().as_raw() + 1);
        let why = tell(&address, &said("0"), me, SHORT).unwrap_err().to_string();
        let start = format!("user {} holds the socket", getuid().as_raw());
        assert!(why.starts_with(&start) && why.lines().count() == 1, "{why}");
        let mut heard = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut heard).unwrap();
        assert!(heard.is_empty());
        tell(&address, &said("0"), getuid(), SHORT).unwrap();
    }

    #[test]
    fn a_listener_who_does_not_read_holds_nobody_up() {
        let (address, _listener) = deaf("reader");
        let (start, long) = (Instant::now(), said(&"0,".repeat(1 << 20)));
        let why = tell(&address, &long, getuid(), SHORT).unwrap_err().to_string();
        assert!(why.starts_with("local rank 0 of this step does not read"), "{why}");
        // Nor one whose queue is full.
        let (address, listener) = deaf("queue");
        rustix::net::listen(&listener, 0).unwrap();
        let _first = connect(&address, SHORT).unwrap();
        let why = tell(&address, &said("0"), getuid(), SHORT).unwrap_err().to_string();
        assert!(why.starts_with("local rank 0 of this step does not listen"), "{why}");
        assert!(start.elapsed() < 20 * SHORT, "{:?}", start.elapsed());
    }

    #[test]
    fn the_second_gatherer_of_a_step_is_sent_away() {
        let (address, _listener) = deaf("second");
        let why = listen(&address, said("0"), 1, SHORT).unwrap_err().to_string();
        assert!(why.starts_with("another process of this step gathers already"), "{why}");
    }

    #[test]
    fn a_task_that_connects_and_is_silent_holds_up_nobody() {
        let name = format!("gpu-align-test/{}/silent", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let of = |local| Said { local, ..said("0") };
        let gatherer = {
            let (address, own) = (address.clone(), of(0));
            thread::spawn(move || listen(&address, own, 4, 10 * SHORT).unwrap())
        };
        let start = Instant::now();
        let silent = loop {
            match connect(&address, SHORT) {
                Ok(stream) => break stream,
                Err(why) => assert!(start.elapsed() < 10 * SHORT, "{why}"),
            }
        };
        // Nor one that stops in the middle, or sends what is not to be understood.
        let mut halting = connect(&address, SHORT).unwrap();
        halting.write_all(b"{").unwrap();
        connect(&address, SHORT).unwrap().write_all(b"x").unwrap();
        for local in [2, 3] {
            tell(&address, &of(local), getuid(), SHORT).unwrap();
        }
        let heard = gatherer.join().unwrap();
        drop((silent, halting));
        assert_eq!(heard.keys().copied().collect::<Vec<_>>(), [0, 2, 3]);
    }

    #[test]
    fn one_table_for_the_tasks_of_a_node() {
        let task = |rank: usize, minors: &[u32], visible: &str, own| {
            let env = [
                ("SLURMD_NODENAME", "n1"),
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
                ("CUDA_VISIBLE_DEVICES", visible),
            ];
            let view = View::of(&scene(&node("inv8p"), minors, &env), false);
            Said { rank, local: rank - 8, own, view }
        };
        let gathered = |said: Vec<Said>, missing: Vec<usize>| Gathered {
            schema: 1,
            node: "n1".into(),
            place: Some("step 12.0".into()),
            tasks: said.len() + missing.len(),
            said,
            missing,
        };
        let all = |rank, own| task(rank, &[0, 1], "0,1", Some(own));
        let all = gathered(vec![all(8, 0), all(9, 1), all(10, 0)], vec![3]);
        let bound = [task(8, &[2], "0", None), task(9, &[3], "0", None), task(10, &[0], "9", None)];
        let bound = gathered(bound.into(), Vec::new());
        let narrow = Screen { width: 60, colours: false };
        let texts = [all.text(SCREEN), bound.text(SCREEN), bound.text(narrow)];
        golden("show-gathered", &texts.join("\n"));
    }
}

//! `gpu-align show`: every device that this process can use, by all its names,
//! and who says so.

mod step;

use std::process::ExitCode;

use clap::Args;
use gpu_align::device::Device;
use serde::Serialize;

use crate::inside::env::Env;
use crate::inside::gather;
use crate::inside::scene::{ORDER, PCI_ORDER, Scene};
use crate::inside::screen::{Screen, count, number, size, word};

const EXAMPLES: &str = "\
Exit status:
  0  this process can use at least one device
  1  it can use none, or it cannot be told which are its own (--export)
  2  neither the driver nor CUDA could be looked at; with --export, not the driver; with
     --step, this is no task of a step

Examples:
  gpu-align show
  srun -n4 --gres=gpu:4 --gpu-align gpu-align show --step
  eval \"$(gpu-align show --export)\"
  gpu-align show --json | jq -r '.devices[].uuid'

Columns: cuda is the index that CUDA gives the device (cuda:0 …), card is nvidia-smi's
index on the host, here is its index in this process's own view, minor is N of
/dev/nvidiaN. A star beside the NUMA node marks cards near this process's CPUs.";

/// Show the devices that this process can use
///
/// Works in a task, a job's shell, an ssh session or on a bare machine; says what it
/// could not look at.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Show {
    /// Add the node's other cards, marked as out of reach
    #[arg(long)]
    all: bool,
    /// Print JSON for programs
    #[arg(long, conflicts_with = "export")]
    json: bool,
    /// Print lines for a shell's eval: CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES
    #[arg(long, conflicts_with_all = ["all", "step"])]
    export: bool,
    /// Gather the tasks of this Slurm step on each node into one table
    #[arg(long)]
    step: bool,
}

impl Show {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let scene = gather::scene(Env::own());
        if self.export {
            return match export(&scene) {
                Ok(lines) => {
                    crate::print(&lines);
                    Ok(ExitCode::SUCCESS)
                }
                Err(why) => {
                    eprintln!("gpu-align: {why}");
                    Ok(ExitCode::from(if scene.inventory.is_err() { 2 } else { 1 }))
                }
            };
        }
        let view = View::of(&scene, self.all);
        let screen = Screen::stdout();
        if self.step {
            if let Some(gathered) = step::gather(&scene, view.clone())? {
                crate::print(&match self.json {
                    true => serde_json::to_string(&gathered)? + "\n",
                    false => gathered.text(screen),
                });
            }
            return Ok(view.exit());
        }
        crate::print(&match self.json {
            true => serde_json::to_string_pretty(&view)? + "\n",
            false => view.text(screen),
        });
        Ok(view.exit())
    }
}

/// The lines that name this process's own devices to CUDA.
pub fn export(scene: &Scene) -> Result<String, String> {
    let devices = scene.allotted()?;
    if devices.is_empty() {
        return Err("this process can use no card; ask Slurm for one with --gres=gpu:1".into());
    }
    export_lines(scene, &devices)
}

pub fn export_lines(scene: &Scene, devices: &[Device]) -> Result<String, String> {
    let uuid = |device: &Device| {
        let pci = scene.cards().card(*device).pci;
        let unknown = || format!("the UUID of card {pci} is not known; run nvidia-smi once");
        scene.uuid(*device).map(|uuid| uuid.to_string()).ok_or_else(unknown)
    };
    let uuids: Vec<String> = devices.iter().map(uuid).collect::<Result<_, _>>()?;
    Ok(format!(
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID\nexport CUDA_VISIBLE_DEVICES={}\n",
        uuids.join(",")
    ))
}

/// What is shown; the JSON form is this, `schema` 1.
#[derive(Clone, Debug, Serialize, serde::Deserialize)]
pub struct View {
    schema: u32,
    node: String,
    /// `step 12.0` or `job 12`; null outside of Slurm.
    place: Option<String>,
    local_rank: Option<usize>,
    /// The value of CUDA_DEVICE_ORDER; null where it is unset.
    order: Option<String>,
    visible: Option<String>,
    cpus: String,
    /// How many cards the node has; null where the driver does not say.
    cards: Option<usize>,
    devices: Vec<Row>,
    notes: Vec<String>,
    /// What could not be looked at.
    unseen: Vec<String>,
    blind: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
struct Row {
    /// CUDA's index; null if CUDA does not enumerate it.
    cuda: Option<usize>,
    /// nvidia-smi's index on the host.
    card: Option<usize>,
    /// nvidia-smi's index in this process's view.
    here: Option<usize>,
    minor: Option<u32>,
    pci: String,
    uuid: Option<String>,
    model: String,
    /// Bytes.
    memory: Option<u64>,
    numa: Option<u32>,
    near: bool,
    reach: bool,
    /// `kernel`, `Slurm`, `CUDA`.
    said_by: Vec<String>,
}

impl View {
    pub fn of(scene: &Scene, all: bool) -> View {
        let cards = scene.cards();
        let slurm = scene.slurm_says().unwrap_or_default();
        let here: Vec<usize> = {
            let mut cards: Vec<usize> = scene.reach.iter().map(|device| device.card).collect();
            cards.dedup();
            cards
        };
        let mut devices: Vec<Row> = Vec::new();
        for device in cards.devices() {
            let reach = scene.reach.contains(&device);
            let cuda = scene.cuda_index(device);
            if !(reach || all || cuda.is_some()) {
                continue;
            }
            let card = cards.card(device);
            let says = |who: &str, does: bool| does.then(|| who.to_owned());
            let said = [
                says("kernel", reach),
                says("Slurm", slurm.contains(&device)),
                says("CUDA", cuda.is_some()),
            ];
            let model = match cards.slice(device) {
                Some(slice) => format!("{} MIG {}", card.model, slice.profile),
                None => card.model.clone(),
            };
            devices.push(Row {
                cuda,
                card: Some(device.card),
                here: here.iter().position(|&rank| rank == device.card),
                minor: Some(card.minor.0),
                pci: card.pci.to_string(),
                uuid: scene.uuid(device).map(|uuid| uuid.to_string()),
                model,
                memory: memory(scene, device),
                numa: card.numa,
                near: scene.near.get(device.card).copied().unwrap_or(false),
                reach,
                said_by: said.into_iter().flatten().collect(),
            });
        }
        devices.extend(only_cuda(scene));
        devices.sort_by_key(|row| (row.cuda.is_none(), row.cuda, !row.reach, row.card));
        let cuda_answers = scene.cuda.as_ref().is_ok_and(|answer| answer.is_answer());
        View {
            schema: 1,
            node: scene.node_name(),
            place: scene.place().map(|(word, name)| format!("{word} {name}")),
            local_rank: scene.in_job().then(|| scene.env.number("SLURM_LOCALID")).flatten(),
            order: scene.env.owned(ORDER),
            visible: scene.env.owned(crate::inside::scene::VISIBLE),
            cpus: scene.cpus.clone(),
            cards: scene.inventory.as_ref().ok().map(|known| known.cards().len()),
            notes: notes(scene),
            unseen: scene.unseen(),
            blind: scene.inventory.is_err() && !cuda_answers,
            devices,
        }
    }

    /// What may name a card, a user or the node.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let View {
            schema: _,
            node,
            place,
            local_rank: _,
            order,
            visible,
            cpus: _,
            cards: _,
            devices,
            notes,
            unseen,
            blind: _,
        } = self;
        let uuids = devices.iter_mut().filter_map(|row| row.uuid.as_mut());
        let said = place.iter_mut().chain(order).chain(visible);
        [node].into_iter().chain(said).chain(notes).chain(unseen).chain(uuids)
    }

    /// Whether neither the driver nor CUDA could be looked at.
    pub fn is_blind(&self) -> bool {
        self.blind
    }

    fn usable(&self) -> usize {
        self.devices.iter().filter(|row| row.reach || row.cuda.is_some()).count()
    }

    fn exit(&self) -> ExitCode {
        match (self.usable(), self.blind) {
            (0, true) => ExitCode::from(2),
            (0, false) => ExitCode::from(1),
            _ => ExitCode::SUCCESS,
        }
    }

    /// What all rows have in common is said once, above the table.
    fn common<'a>(&'a self, what: impl Fn(&'a Row) -> Option<String>) -> Option<String> {
        let mut all = self.devices.iter().filter_map(what);
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    fn headline(&self) -> String {
        let place = self.place.as_ref().map(|place| format!(" {place}")).unwrap_or_default();
        let rank = self.local_rank.map(|rank| format!(" local rank {rank}")).unwrap_or_default();
        let usable = self.usable();
        let what = match self.cards {
            _ if self.blind => "it cannot be told what can be used here".into(),
            Some(cards) if self.devices.iter().all(|row| !row.model.contains(" MIG ")) => {
                format!("{usable} of {} can be used here", count(cards, "card"))
            }
            _ => format!("{} can be used here", count(usable, "device")),
        };
        let model = self.common(|row| Some(row.model.clone()));
        let memory = self.common(|row| row.memory.map(size));
        let of = [model, memory].into_iter().flatten().map(|text| format!(", {text}"));
        format!("gpu-align: {}{place}{rank}: {what}{}", self.node, of.collect::<String>())
    }

    pub fn text(&self, screen: Screen) -> String {
        let mut out = screen.sentence("", 2, &self.headline()).trim_start().to_owned();
        if !self.devices.is_empty() {
            out += &self.table(screen);
        }
        if self.devices.iter().any(|row| row.near) {
            out += &screen.faint(&screen.sentence(
                "*",
                2,
                &format!("near this process's CPUs ({})", self.cpus),
            ));
        }
        for note in &self.notes {
            out += &screen.sentence("", 0, note);
        }
        for unseen in &self.unseen {
            out += &screen.sentence("not looked at:", 15, unseen);
        }
        out
    }

    fn table(&self, screen: Screen) -> String {
        let same_model = self.common(|row| Some(row.model.clone())).is_some();
        let same_memory = self.common(|row| row.memory.map(size)).is_some();
        let mut heads = vec![
            number("cuda"),
            number("card"),
            number("here"),
            number("minor"),
            word("bus"),
            word("uuid"),
            number("numa"),
            word(" said by"),
        ];
        if !same_model {
            heads.push(word("model"));
        }
        if !same_memory {
            heads.push(word("memory"));
        }
        let dash = |n: Option<usize>| n.map_or("-".to_owned(), |n| n.to_string());
        let rows: Vec<Vec<String>> = self
            .devices
            .iter()
            .map(|row| {
                let numa = row.numa.map_or("-".to_owned(), |numa| numa.to_string());
                let said = match row.reach || row.cuda.is_some() {
                    true => format!(" {}", row.said_by.join(" ")),
                    false => " out of reach".to_owned(),
                };
                let mut cells = vec![
                    dash(row.cuda),
                    dash(row.card),
                    dash(row.here),
                    row.minor.map_or("-".into(), |minor| minor.to_string()),
                    row.pci.clone(),
                    row.uuid.clone().unwrap_or_else(|| "not known before its first use".into()),
                    format!("{numa}{}", if row.near { "*" } else { " " }),
                    said,
                ];
                if !same_model {
                    cells.push(row.model.clone());
                }
                if !same_memory {
                    cells.push(row.memory.map_or("-".into(), size));
                }
                cells
            })
            .collect();
        screen.table(&heads, &rows)
    }
}

/// A device's memory, from CUDA.
fn memory(scene: &Scene, device: Device) -> Option<u64> {
    let answers = [&scene.cuda, &scene.unfiltered];
    let mut seen = answers.into_iter().flatten().flat_map(|answer| &answer.devices);
    Some(seen.find(|seen| scene.device_of(seen) == Some(device))?.memory)
}

/// Devices that CUDA enumerates and the driver's list, as seen here, lacks.
fn only_cuda(scene: &Scene) -> Vec<Row> {
    let answer = scene.cuda.as_ref().ok();
    let seen = answer.iter().flat_map(|answer| answer.devices.iter().enumerate());
    seen.filter(|(_, device)| scene.device_of(device).is_none())
        .map(|(index, device)| Row {
            cuda: Some(index),
            card: None,
            here: None,
            minor: None,
            pci: device.pci.to_string(),
            uuid: Some(device.uuid.to_string()),
            model: device.name.clone(),
            memory: Some(device.memory),
            numa: None,
            near: false,
            reach: false,
            said_by: vec!["CUDA".into()],
        })
        .collect()
}

fn notes(scene: &Scene) -> Vec<String> {
    let mut notes = Vec::new();
    if let Err(why) = scene.allotted() {
        if scene.inventory.is_ok() {
            notes.push(format!("note: {why}"));
        }
    }
    let unlike = {
        let mut models: Vec<&str> =
            scene.reach.iter().map(|d| scene.cards().card(*d).model.as_str()).collect();
        models.dedup();
        models.len() > 1
    };
    if scene.env.get(ORDER) != Some(PCI_ORDER) && unlike {
        notes.push(
            "note: CUDA counts the fastest card first, nvidia-smi by bus; set \
             CUDA_DEVICE_ORDER=PCI_BUS_ID to have one order"
                .into(),
        );
    }
    let hidden = scene.reach.iter().filter(|d| scene.cuda_index(**d).is_none()).count();
    let reading = scene.reading();
    if hidden > 0 && reading.end != gpu_align::cuda::visible::End::Whole {
        notes.push(format!(
            "note: CUDA_VISIBLE_DEVICES hides {}; 'gpu-align verify' says why its list ends",
            count(hidden, "device")
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::simulated::{SCREEN, golden, node, oops, scene};

    const JOB: [(&str, &str); 5] = [
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_LOCALID", "1"),
        (ORDER, PCI_ORDER),
    ];

    fn with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        JOB.iter().copied().chain(more.iter().copied()).collect()
    }

    #[test]
    fn in_a_step() {
        let env = with(&[("CUDA_VISIBLE_DEVICES", "0,1,2"), ("SLURM_STEP_GPUS", "3,4,5")]);
        let scene = scene(&node("inv8p"), &[3, 4, 5], &env);
        golden("show-step", &View::of(&scene, false).text(SCREEN));
        golden("show-step-all", &View::of(&scene, true).text(SCREEN));
        let narrow = Screen { width: 60, ..SCREEN };
        golden("show-step-narrow", &View::of(&scene, false).text(narrow));
        let view = serde_json::to_string_pretty(&View::of(&scene, false)).unwrap();
        golden("show-step-json", &view);
        golden("show-export", &export(&scene).unwrap());
    }

    #[test]
    fn numbers_that_cannot_be_looked_up_are_said_where_slurm_gave_some() {
        let said = |env: &[(&str, &str)]| {
            let mut scene = scene(&node("inv8p"), &[3], &with(env));
            scene.positions = Err(oops());
            View::of(&scene, false).text(SCREEN)
        };
        let line = "not looked at: what Slurm's numbers mean: gres.conf:1: 'oops': correct it\n";
        assert!(said(&[("SLURM_STEP_GPUS", "3")]).ends_with(line));
        assert!(!said(&[]).contains("not looked at"));
    }

    #[test]
    fn on_a_bare_machine_with_unlike_cards() {
        let scene = scene(&node("unlike2"), &[0, 1], &[("SLURMD_NODENAME", "n1")]);
        golden("show-bare", &View::of(&scene, false).text(SCREEN));
    }

    #[test]
    fn without_a_card() {
        let scene = scene(&node("none"), &[], &[("SLURMD_NODENAME", "n1")]);
        golden("show-none", &View::of(&scene, false).text(SCREEN));
        assert!(export(&scene).is_err());
    }

    #[test]
    fn fc_47_an_adopted_session_has_the_cgroup_but_not_the_variables() {
        let env = [("SLURM_JOB_ID", "12"), ("SLURMD_NODENAME", "n1")];
        let own = scene(&node("tidy4"), &[2, 3], &env);
        assert!(export(&own).unwrap().contains("VISIBLE_DEVICES=GPU-"));
        assert_eq!(export(&own).unwrap().matches("GPU-").count(), 2);
        let every = scene(&node("tidy4"), &[0, 1, 2, 3], &env);
        assert!(export(&every).unwrap_err().starts_with("cannot tell which cards are yours"));
        golden("show-adopted", &View::of(&own, false).text(SCREEN));
        golden("show-adopted-all", &View::of(&every, false).text(SCREEN));
    }

    #[test]
    fn every_line_fits_its_screen() {
        let env = with(&[("CUDA_VISIBLE_DEVICES", "0"), ("SLURM_STEP_GPUS", "3,4,5")]);
        let scene = scene(&node("inv8p"), &[3, 4, 5], &env);
        for width in [46, 60, 80, 100] {
            let text = View::of(&scene, true).text(Screen { width, ..SCREEN });
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }
}

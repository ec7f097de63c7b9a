//! `kill -9` of whoever writes the record, at 200 random moments: a reader finds
//! a whole record, the old or the new one.
//!
//! The writer is this test program again, running [`write_until_killed`] alone.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gpu_align::node::record;

const WRITER: &str = "GPU_ALIGN_TEST_RECORD";
const MOMENTS: u64 = 200;

/// Two records that share no byte at any place, long enough for many pages.
fn records() -> [Vec<u8>; 2] {
    [vec![b'a'; 300_000], vec![b'b'; 500_000]]
}

/// A writer's whole life; nothing when cargo runs it.
#[test]
fn write_until_killed() {
    let Some(path) = env::var_os(WRITER) else { return };
    loop {
        for record in records() {
            record::write(Path::new(&path), &record).unwrap();
        }
    }
}

#[test]
fn a_record_is_whole_whenever_its_writer_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu-align/node.json");
    let records = records();
    record::write(&path, &records[0]).unwrap();
    let mut found = [0, 0];
    // Spread over two rounds of the writer, without a pattern of their own.
    let mut moment = 1_u64;
    for _ in 0..MOMENTS {
        moment = moment.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mut writer = Command::new(env::current_exe().unwrap())
            .args(["--exact", "write_until_killed"])
            .env(WRITER, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        await_change(&path);
        thread::sleep(Duration::from_nanos((moment >> 33) % 6_000_000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let read = fs::read(&path).unwrap();
        let which = records.iter().position(|record| *record == read);
        found[which.unwrap_or_else(|| panic!("{} bytes are neither record", read.len()))] += 1;
    }
    assert!(found.iter().all(|&times| times > 0), "{found:?}");
    let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().flatten().collect();
    // The record, the lock, and what the last writer left.
    assert!(left.len() <= 3, "{left:?}");
    record::write(&path, b"done").unwrap();
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
}

/// Waits until the writer has replaced the file once.
fn await_change(path: &Path) {
    use std::os::unix::fs::MetadataExt;
    let inode = || fs::metadata(path).unwrap().ino();
    let (before, start) = (inode(), Instant::now());
    while inode() == before {
        assert!(start.elapsed() < Duration::from_secs(20), "the writer does not write");
        thread::yield_now();
    }
}

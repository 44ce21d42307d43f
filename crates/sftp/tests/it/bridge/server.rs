//! A server in memory: what it does is counted, and it can be asked without a connection.

use std::collections::{BTreeMap, HashMap};

use bytes::{Buf, BufMut};

/// Status codes (draft-ietf-secsh-filexfer-02 section 7).
const OK: u32 = 0;
const EOF: u32 = 1;
const NO_SUCH_FILE: u32 = 2;
const FAILURE: u32 = 4;

/// The behaviour of a server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Manner {
    /// Its answers come in any order.
    pub(super) is_disorderly: bool,
    pub(super) names_at_once: usize,
    /// It is not the first one, and takes less at once.
    pub(super) later: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    File(Vec<u8>),
    Directory,
    Link(Vec<u8>),
}

/// Nodes by number, and their names.
#[derive(Default)]
pub(super) struct Disk {
    nodes: Vec<(Node, u32)>,
    names: BTreeMap<Vec<u8>, usize>,
    made: HashMap<String, u32>,
    now: u32,
}

pub(super) fn string(bytes: &[u8]) -> Vec<u8> {
    let mut string = Vec::from((bytes.len() as u32).to_be_bytes());
    string.extend(bytes);
    string
}

pub(super) fn packet(kind: u8, id: u32, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![kind];
    packet.put_u32(id);
    packet.extend(body);
    string(&packet)
}

pub(super) fn status_code(kind: u8, body: &[u8]) -> Option<u32> {
    (kind == 101).then(|| (&body[..]).get_u32())
}

/// The names in an answer to READDIR.
pub(super) fn names(mut body: &[u8]) -> Vec<Vec<u8>> {
    (0..body.get_u32())
        .map(|_| {
            let name = take(&mut body);
            take(&mut body);
            body.get_u32();
            name
        })
        .collect()
}

fn take(body: &mut &[u8]) -> Vec<u8> {
    let length = body.get_u32() as usize;
    let taken = body[..length].to_vec();
    body.advance(length);
    taken
}

impl Disk {
    pub(super) fn with_files() -> Self {
        let mut disk = Self::default();
        disk.add(b"a", Node::File(b"the first file has some text".to_vec()));
        disk.add(b"b", Node::File(b"and this is the second".to_vec()));
        disk.add(b"d", Node::Directory);
        disk.add(b"d/x", Node::File(vec![b'x'; 25]));
        for n in 0..6 {
            disk.add(format!("d/{n}").as_bytes(), Node::File(Vec::new()));
        }
        disk
    }

    pub(super) fn change_count(&self, change: &str) -> u32 {
        self.made.get(change).copied().unwrap_or(0)
    }

    pub(super) fn ledger(&self) -> impl Iterator<Item = (&String, u32)> {
        self.made.iter().map(|(change, times)| (change, *times))
    }

    /// Returns the contents, by name.
    pub(super) fn tree(&self) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let nodes = self.names.iter().map(|(name, node)| {
            let node = match &self.nodes[*node].0 {
                Node::File(data) => format!("file {:?}", text(data)),
                Node::Directory => "directory".into(),
                Node::Link(target) => format!("link to {}", text(target)),
            };
            (text(name), node)
        });
        nodes.collect()
    }

    fn add(&mut self, name: &[u8], node: Node) -> usize {
        self.now += 1;
        self.nodes.push((node, self.now));
        self.names.insert(name.to_vec(), self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    fn count(&mut self, change: String) -> u32 {
        *self.made.entry(change).or_default() += 1;
        OK
    }

    fn parent_is_there(&self, name: &[u8]) -> bool {
        match name.iter().rposition(|byte| *byte == b'/') {
            Some(at) => self
                .node(&name[..at])
                .is_some_and(|node| *node == Node::Directory),
            None => true,
        }
    }

    fn node(&self, name: &[u8]) -> Option<&Node> {
        self.names.get(name).map(|node| &self.nodes[*node].0)
    }

    fn has_children(&self, name: &[u8]) -> bool {
        let prefix = [name, b"/"].concat();
        self.names.keys().any(|name| name.starts_with(&prefix))
    }

    /// Renames a file, or a directory with what is in it.
    fn rename(&mut self, from: &[u8], to: &[u8], replaces: bool) -> u32 {
        let Some(node) = self.node(from).cloned() else {
            return NO_SUCH_FILE;
        };
        let into_itself = to.starts_with(&[from, b"/"].concat()) || from.starts_with(&[to, b"/"].concat());
        let stands_in_the_way = self.names.contains_key(to) && !replaces;
        let differs = match self.node(to) {
            Some(other) => (*other == Node::Directory) != (node == Node::Directory) || self.has_children(to),
            None => false,
        };
        if from == to || into_itself || stands_in_the_way || differs {
            return FAILURE;
        }
        if !self.parent_is_there(to) {
            return NO_SUCH_FILE;
        }
        let inside = [from, b"/"].concat();
        let moved: Vec<_> = self
            .names
            .keys()
            .filter(|name| *name == from || name.starts_with(&inside))
            .cloned()
            .collect();
        for name in moved {
            let node = self.names.remove(&name).unwrap();
            self.names.insert([to, &name[from.len()..]].concat(), node);
        }
        OK
    }
}

/// The names of a directory that are still to be told.
type Listed = Option<Vec<Vec<u8>>>;

/// A session with the server.
pub(super) struct Session {
    manner: Manner,
    /// The open files, by number: the lowest free one is used next, as by sftp-server.
    open: Vec<Option<(usize, Listed)>>,
}

impl Session {
    pub(super) fn new(manner: Manner) -> Self {
        Self {
            manner,
            open: Vec::new(),
        }
    }

    /// Takes a message and gives its answer.
    pub(super) fn message(&mut self, disk: &mut Disk, message: &[u8]) -> Vec<u8> {
        if message[0] == 1 {
            assert_eq!(message, [1, 0, 0, 0, 3]);
            let mut version = vec![2, 0, 0, 0, 3];
            let known = [
                "posix-rename@openssh.com",
                "statvfs@openssh.com",
                "fstatvfs@openssh.com",
                "limits@openssh.com",
            ];
            for (name, number) in known.into_iter().zip(["1", "2", "2", "1"]) {
                version.extend([string(name.as_bytes()), string(number.as_bytes())].concat());
            }
            return string(&version);
        }
        let id = (&message[1..5]).get_u32();
        let (kind, body) = self.serve(disk, message[0], &message[5..]);
        packet(kind, id, &body)
    }

    pub(super) fn serve(&mut self, disk: &mut Disk, kind: u8, mut body: &[u8]) -> (u8, Vec<u8>) {
        let body = &mut body;
        let first = match kind {
            200 => Vec::new(),
            _ => take(body),
        };
        let done = |code: u32| {
            let mut status = Vec::from(code.to_be_bytes());
            status.extend([string(b"words"), string(b"")].concat());
            (101, status)
        };
        match kind {
            3 => self.open(disk, &first, body.get_u32()).unwrap_or_else(done),
            4 => done(self.close(&first)),
            5 => self
                .read(disk, &first, body.get_u64(), body.get_u32())
                .unwrap_or_else(done),
            6 => {
                let offset = body.get_u64() as usize;
                done(self.write(disk, &first, offset, &take(body)))
            }
            7 | 17 => match disk.names.get(&first) {
                Some(node) => (105, attributes(disk, *node)),
                None => done(NO_SUCH_FILE),
            },
            8 => match self.number(&first) {
                Some(node) => (105, attributes(disk, node)),
                None => done(FAILURE),
            },
            10 => {
                assert_eq!(body.get_u32(), 1);
                done(self.cut(disk, &first, body.get_u64() as usize))
            }
            11 => self.open_directory(disk, &first).unwrap_or_else(done),
            12 => self.list(&first).unwrap_or_else(done),
            18 => {
                let to = take(body);
                let code = disk.rename(&first, &to, false);
                done(count_change(disk, code, "rename", &[&first, &to]))
            }
            19 => match disk.node(&first) {
                Some(Node::Link(target)) => {
                    let mut name = vec![0, 0, 0, 1];
                    name.extend([string(target), string(b""), vec![0; 4]].concat());
                    (104, name)
                }
                Some(_) => done(FAILURE),
                None => done(NO_SUCH_FILE),
            },
            200 => self.handle_extended(disk, &take(body), body).unwrap_or_else(done),
            _ => done(name_change(disk, kind, &first, body)),
        }
    }

    fn handle_extended(
        &mut self,
        disk: &mut Disk,
        name: &[u8],
        body: &mut &[u8],
    ) -> Result<(u8, Vec<u8>), u32> {
        if name == b"limits@openssh.com" {
            let mut limits = Vec::new();
            [34_000, 4096, 4096, 100]
                .into_iter()
                .for_each(|limit| limits.put_u64(limit));
            return Ok((201, limits));
        }
        let first = take(body);
        if name == b"fsync@openssh.com" {
            return Err(self.number(&first).map_or(FAILURE, |_| OK));
        }
        let to = take(body);
        if name == b"posix-rename@openssh.com" {
            let code = disk.rename(&first, &to, true);
            return Err(count_change(disk, code, "posix-rename", &[&first, &to]));
        }
        assert_eq!(name, b"hardlink@openssh.com");
        let node = match disk.names.get(&first) {
            None => return Err(NO_SUCH_FILE),
            Some(node) => *node,
        };
        let is_file = matches!(disk.nodes[node].0, Node::File(_));
        if !is_file || disk.names.contains_key(&to) || !disk.parent_is_there(&to) {
            return Err(FAILURE);
        }
        disk.names.insert(to.clone(), node);
        Err(count_change(disk, OK, "hardlink", &[&first, &to]))
    }

    fn number(&self, handle: &[u8]) -> Option<usize> {
        let index = <[u8; 4]>::try_from(handle).ok().map(u32::from_be_bytes)?;
        self.open.get(index as usize)?.as_ref().map(|(node, _)| *node)
    }

    fn handle(&mut self, node: usize, names: Listed) -> (u8, Vec<u8>) {
        let free = self
            .open
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.open.len());
        self.open.resize(self.open.len().max(free + 1), None);
        self.open[free] = Some((node, names));
        (102, string(&(free as u32).to_be_bytes()))
    }

    fn open(&mut self, disk: &mut Disk, path: &[u8], flags: u32) -> Result<(u8, Vec<u8>), u32> {
        let (makes, empties, is_exclusive) = (flags & 8 != 0, flags & 16 != 0, flags & 32 != 0);
        let node = match disk.names.get(path) {
            Some(_) if makes && is_exclusive => return Err(FAILURE),
            Some(node) => *node,
            None if makes && disk.parent_is_there(path) => {
                if is_exclusive {
                    disk.count(format!("make {}", String::from_utf8_lossy(path)));
                }
                disk.add(path, Node::File(Vec::new()))
            }
            None => return Err(NO_SUCH_FILE),
        };
        let Node::File(data) = &mut disk.nodes[node].0 else {
            return Err(FAILURE);
        };
        if empties {
            data.clear();
            disk.now += 1;
            disk.nodes[node].1 = disk.now;
        }
        Ok(self.handle(node, None))
    }

    fn open_directory(&mut self, disk: &Disk, path: &[u8]) -> Result<(u8, Vec<u8>), u32> {
        let node = *disk.names.get(path).ok_or(NO_SUCH_FILE)?;
        if disk.nodes[node].0 != Node::Directory {
            return Err(FAILURE);
        }
        let inside = [path, b"/"].concat();
        let names = disk
            .names
            .keys()
            .filter_map(|name| name.strip_prefix(&inside[..]))
            .map(<[u8]>::to_vec);
        Ok(self.handle(node, Some(names.collect())))
    }

    fn close(&mut self, handle: &[u8]) -> u32 {
        match self.number(handle) {
            Some(_) => {
                self.open[u32::from_be_bytes(handle.try_into().unwrap()) as usize] = None;
                OK
            }
            None => FAILURE,
        }
    }

    fn list(&mut self, handle: &[u8]) -> Result<(u8, Vec<u8>), u32> {
        self.number(handle).ok_or(FAILURE)?;
        let index = u32::from_be_bytes(handle.try_into().unwrap()) as usize;
        let Some((_, Some(names))) = &mut self.open[index] else {
            return Err(FAILURE);
        };
        let some: Vec<_> = names
            .drain(..names.len().min(self.manner.names_at_once.max(1)))
            .collect();
        if some.is_empty() {
            return Err(EOF);
        }
        let mut answer = Vec::from((some.len() as u32).to_be_bytes());
        for name in some {
            answer.extend([string(&name), string(b"long"), vec![0; 4]].concat());
        }
        Ok((104, answer))
    }

    fn file<'d>(&self, disk: &'d mut Disk, handle: &[u8]) -> Option<&'d mut Vec<u8>> {
        let node = self.number(handle)?;
        disk.now += 1;
        let (Node::File(data), modified) = &mut disk.nodes[node] else {
            return None;
        };
        *modified = disk.now;
        Some(data)
    }

    fn read(&self, disk: &Disk, handle: &[u8], offset: u64, length: u32) -> Result<(u8, Vec<u8>), u32> {
        let node = self.number(handle).ok_or(FAILURE)?;
        let Node::File(data) = &disk.nodes[node].0 else {
            return Err(FAILURE);
        };
        // Later sessions answer short, as if their limit had become smaller.
        let most = if self.manner.later { 7 } else { length as usize };
        let start = (offset as usize).min(data.len());
        let end = (start + (length as usize).min(most)).min(data.len());
        match &data[start..end] {
            [] => Err(EOF),
            data => Ok((103, string(data))),
        }
    }

    fn write(&self, disk: &mut Disk, handle: &[u8], offset: usize, data: &[u8]) -> u32 {
        let Some(file) = self.file(disk, handle) else {
            return FAILURE;
        };
        file.resize(file.len().max(offset + data.len()), 0);
        file[offset..offset + data.len()].copy_from_slice(data);
        OK
    }

    fn cut(&self, disk: &mut Disk, handle: &[u8], size: usize) -> u32 {
        match self.file(disk, handle) {
            Some(file) => {
                file.resize(size, 0);
                OK
            }
            None => FAILURE,
        }
    }
}

fn count_change(disk: &mut Disk, code: u32, what: &str, paths: &[&[u8]]) -> u32 {
    if code != OK {
        return code;
    }
    let paths: Vec<_> = paths.iter().map(|path| String::from_utf8_lossy(path)).collect();
    disk.count(format!("{what} {}", paths.join(" ")))
}

/// REMOVE, MKDIR, RMDIR and SYMLINK.
fn name_change(disk: &mut Disk, kind: u8, path: &[u8], body: &mut &[u8]) -> u32 {
    let (path, target) = match kind {
        20 => (take(body), Some(path.to_vec())),
        _ => (path.to_vec(), None),
    };
    let is_there = disk.names.contains_key(&path);
    let is_directory = disk.node(&path) == Some(&Node::Directory);
    let makes = |disk: &Disk| match (is_there, disk.parent_is_there(&path)) {
        (true, _) => FAILURE,
        (false, false) => NO_SUCH_FILE,
        (false, true) => OK,
    };
    let takes_away = |is_right: bool| match (is_there, is_right) {
        (false, _) => NO_SUCH_FILE,
        (true, true) => OK,
        (true, false) => FAILURE,
    };
    let (what, code) = match kind {
        13 => ("remove", takes_away(!is_directory)),
        14 => ("mkdir", makes(disk)),
        15 => ("rmdir", takes_away(is_directory && !disk.has_children(&path))),
        20 => ("symlink", makes(disk)),
        other => panic!("a request of type {other}"),
    };
    if code == OK {
        match (kind, target) {
            (20, Some(target)) => drop(disk.add(&path, Node::Link(target))),
            (14, _) => drop(disk.add(&path, Node::Directory)),
            _ => drop(disk.names.remove(&path)),
        }
    }
    count_change(disk, code, what, &[&path])
}

fn attributes(disk: &Disk, node: usize) -> Vec<u8> {
    let (node, modified) = &disk.nodes[node];
    let (kind, size) = match node {
        Node::File(data) => (0o100_644, data.len()),
        Node::Directory => (0o040_755, 0),
        Node::Link(target) => (0o120_777, target.len()),
    };
    let mut attributes = Vec::from([0, 0, 0, 0x0d]);
    attributes.put_u64(size as u64);
    [kind, *modified, *modified]
        .into_iter()
        .for_each(|number| attributes.put_u32(number));
    attributes
}

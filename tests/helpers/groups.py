"""Made-up file trees of control groups."""

MOUNTS = {
    "cgroup2": "31 24 0:28 {root} /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate",
    "cgroup": "32 31 0:29 {root} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}",
}
OTHERS = "24 1 0:22 / /sys rw - sysfs sysfs rw\n31 24 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"


def tree(folder, own, files, root="/", siblings=()):
    """A root folder as that of a process.

    Args:
        own: lines of /proc/self/cgroup.
        files: of the groups, by their paths from /sys/fs/cgroup.
        root: the group that is mounted.
        siblings: of each processor those that share its core, as text.
    """
    mounts = OTHERS
    for line in own.splitlines():
        kind = "cgroup" if line.split(":")[1] else "cgroup2"
        mounts += MOUNTS[kind].format(root=root, name=line.split(":")[1]) + "\n"
    every = {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}
    every |= {"proc/self/cgroup": f"{own}\n", "proc/self/mountinfo": mounts}
    for number, text in enumerate(siblings):
        name = f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        every[name] = f"{text}\n"
    for name, text in every.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder

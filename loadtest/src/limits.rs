use rlimit::Resource;

/// Raises this process's limit of open descriptors, beyond its hard limit if the system lets us; children inherit it. Returns what it is then.
pub fn allow_descriptors(wanted: u64) -> u64 {
    let Ok((_, hard)) = Resource::NOFILE.get() else {
        return u64::MAX; // no such limit here
    };
    if hard < wanted && Resource::NOFILE.set(wanted, wanted).is_ok() {
        return wanted;
    }
    rlimit::increase_nofile_limit(wanted).unwrap_or(hard)
}

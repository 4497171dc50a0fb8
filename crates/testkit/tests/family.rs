//! Processes that fork: servers with workers, shells, build tools.

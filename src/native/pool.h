// Threads that sleep between calls, and memory that outlives them.
#pragma once
#include <cstddef>
#include <cstdint>

using Body = void (*)(const void* context, int64_t task);

// Runs body(context, task) for every task, on up to `threads` threads, the caller's among them. Which thread takes
// which task is left to chance, so a task must not depend on it.
void run_tasks(int64_t tasks, int64_t threads, Body body, const void* context);

// Memory of this thread's own for one purpose (`slot`), at least so many floats, aligned to 64 bytes. What it holds is
// anything; it is valid until the next request for the same slot.
float* own_scratch(int slot, size_t floats);

// The same for all threads together: to be requested outside of tasks.
float* shared_scratch(int slot, size_t floats);

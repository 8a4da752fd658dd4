// Threads park on a condition variable: one that spins takes the processor from whoever else computes here.
#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace {

struct Memory {
    float* data = nullptr;
    size_t floats = 0;

    float* at_least(size_t wanted) {
        if (wanted > floats) {
            std::free(data);
            data = static_cast<float*>(std::aligned_alloc(64, (wanted * sizeof(float) + 63) / 64 * 64));
            floats = data ? wanted : 0;
            if (!data) throw std::bad_alloc();
        }
        return data;
    }
    ~Memory() { std::free(data); }
};

// How denormal numbers are treated is each thread's own setting: helpers take the caller's.
unsigned rounding() {
#if defined(__SSE__)
    return _mm_getcsr();
#else
    return 0;
#endif
}
void set_rounding([[maybe_unused]] unsigned mode) {
#if defined(__SSE__)
    _mm_setcsr(mode);
#endif
}

struct Job {
    Body body;
    const void* context;
    int64_t tasks;
    unsigned mode = rounding();
    std::atomic<int64_t> next{0};

    void work() {
        for (int64_t task; (task = next.fetch_add(1)) < tasks;) body(context, task);
    }
};

struct Pool {
    std::mutex mutex;
    std::condition_variable wake, done;
    Job* job = nullptr;
    int64_t round = 0, wanted = 0, busy = 0, started = 0;

    void run(Job& work, int64_t helpers) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            for (; started < helpers; ++started) std::thread(&Pool::serve, this, started, round).detach();
            job = &work, wanted = helpers, busy = helpers, ++round;
        }
        wake.notify_all();
        work.work();
        std::unique_lock<std::mutex> lock(mutex);
        done.wait(lock, [this] { return busy == 0; });
        job = nullptr;
    }

    void serve(int64_t number, int64_t seen) {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return round != seen; });
            seen = round;
            if (number >= wanted) continue;
            Job* mine = job;
            lock.unlock();
            set_rounding(mine->mode);
            mine->work();
            lock.lock();
            if (--busy == 0) done.notify_one();
        }
    }
};

// Never destroyed: its threads may outlive the end of the program. A forked child has none of them, and makes anew.
Pool* pool = new Pool;
const int at_fork = pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });

thread_local Memory own[10];
Memory shared[4];

}  // namespace

void run_tasks(int64_t tasks, int64_t threads, Body body, const void* context) {
    (void)at_fork;
    Job job{body, context, tasks};
    int64_t helpers = (threads < tasks ? threads : tasks) - 1;
    if (helpers > 0)
        pool->run(job, helpers);
    else
        job.work();
}

float* own_scratch(int slot, size_t floats) { return own[slot].at_least(floats); }
float* shared_scratch(int slot, size_t floats) { return shared[slot].at_least(floats); }

// The Go peers, in the words of ../../README.md: PROGRAM IMPL ADDR WORKLOAD key=value...
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

type params map[string]string

func (p params) number(key string, usual float64) float64 {
	if text, ok := p[key]; ok {
		value, err := strconv.ParseFloat(text, 64)
		must(err)
		return value
	}
	return usual
}

func (p params) text(key, usual string) string {
	if text, ok := p[key]; ok {
		return text
	}
	return usual
}

func (p params) duration(key string, usual float64) time.Duration {
	return time.Duration(p.number(key, usual) * float64(time.Second))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func say(object map[string]any) {
	line, err := json.Marshal(object)
	must(err)
	fmt.Println(string(line))
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: PROGRAM IMPL ADDR pair|idle|hold|pingpong|proof [key=value...]")
		os.Exit(64)
	}
	name, addr, p := os.Args[1], os.Args[2], params{}
	for _, word := range os.Args[4:] {
		key, value, _ := strings.Cut(word, "=")
		p[key] = value
	}
	c, err := connect(name, addr)
	must(err)
	defer c.close()
	switch os.Args[3] {
	case "pair":
		pair(name, c, p)
	case "idle":
		idle(name, c, p)
	case "hold":
		hold(name, c, p)
	case "pingpong":
		pingpong(name, addr, c, p)
	case "proof":
		proof(name, c, p)
	default:
		must(fmt.Errorf("no workload is called %q", os.Args[3]))
	}
}

type tally struct {
	waits  []int64
	errors int
	first  string
}

func handles(c client, count int) []handle {
	all := make([]handle, count)
	for i := range all {
		h, err := c.handle()
		must(err)
		all[i] = h
	}
	return all
}

func pair(name string, c client, p params) {
	threads, tag := int(p.number("threads", 1)), p.text("tag", "bench")
	hold := time.Duration(p.number("hold_us", 0)) * time.Microsecond
	all := handles(c, threads)
	measure(all, p.duration("warm", 1), "own", tag+"-warm", 0)
	say(map[string]any{"event": "ready"})
	bufio.NewReader(os.Stdin).ReadString('\n')
	started := time.Now()
	tallies := measure(all, p.duration("secs", 3), p.text("names", "own"), tag, hold)
	report(name, time.Since(started), tallies)
}

func measure(all []handle, window time.Duration, names, tag string, hold time.Duration) []tally {
	tallies := make([]tally, len(all))
	end := time.Now().Add(window)
	many, _ := strconv.Atoi(names)
	var group sync.WaitGroup
	for worker, h := range all {
		group.Add(1)
		go func() {
			defer group.Done()
			t := &tallies[worker]
			own := fmt.Sprintf("%s-%d-%d", tag, os.Getpid(), worker)
			for {
				called := time.Now()
				if called.After(end) {
					return
				}
				lock := tag + "-one"
				if names == "own" {
					lock = own
				} else if many > 0 {
					lock = fmt.Sprintf("%s-n%d", tag, rand.IntN(many))
				}
				free, err := h.lock(lock)
				waited := time.Since(called)
				if err == nil {
					if hold > 0 {
						time.Sleep(hold)
					}
					err = free()
				}
				if err != nil {
					t.errors++
					if t.first == "" {
						t.first = err.Error()
					}
					time.Sleep(10 * time.Millisecond)
					continue
				}
				t.waits = append(t.waits, waited.Microseconds())
			}
		}()
	}
	group.Wait()
	return tallies
}

func report(name string, took time.Duration, tallies []tally) {
	var all []int64
	least, most, errors, first := len(tallies[0].waits), 0, 0, ""
	for _, t := range tallies {
		all = append(all, t.waits...)
		least, most = min(least, len(t.waits)), max(most, len(t.waits))
		errors += t.errors
		if first == "" {
			first = t.first
		}
	}
	say(map[string]any{
		"event": "result", "impl": name, "cycles": len(all), "secs": took.Seconds(), "per_worker_min": least,
		"per_worker_max": most, "p50_us": at(all, 0.5), "p90_us": at(all, 0.9), "p99_us": at(all, 0.99),
		"max_us": at(all, 1), "errors": errors, "first_error": first,
	})
}

// at gives the value below which that part of all lies.
func at(all []int64, part float64) int64 {
	if len(all) == 0 {
		return 0
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all[min(len(all)-1, int(part*float64(len(all))))]
}

func idle(name string, c client, p params) {
	waiters, lock := int(p.number("waiters", 100)), p.text("tag", "bench")+"-idle"
	holder, err := handles(c, 1)[0].lock(lock)
	must(err)
	done := make(chan error, waiters)
	for _, h := range handles(c, waiters) {
		go func() {
			free, err := h.lock(lock)
			if err == nil {
				err = free()
			}
			done <- err
		}()
	}
	time.Sleep(3 * time.Second)
	say(map[string]any{"event": "ready"})
	time.Sleep(p.duration("secs", 5))
	say(map[string]any{"event": "done"})
	started, acquired, errors := time.Now(), 0, 0
	must(holder())
	for range waiters {
		if err := <-done; err == nil {
			acquired++
		} else {
			errors++
		}
	}
	say(map[string]any{
		"event": "result", "impl": name, "drain_secs": time.Since(started).Seconds(), "acquired": acquired, "errors": errors,
	})
}

func hold(name string, c client, p params) {
	locks, tag := int(p.number("locks", 1000)), p.text("tag", "bench")
	h, started := handles(c, 1)[0], time.Now()
	var held []release
	for i := range locks {
		free, err := h.lock(fmt.Sprintf("%s-hold-%d", tag, i))
		must(err)
		held = append(held, free)
	}
	took := time.Since(started).Seconds()
	say(map[string]any{"event": "ready"})
	time.Sleep(p.duration("secs", 5))
	say(map[string]any{"event": "done"})
	still := 0
	for _, free := range held {
		if free() == nil {
			still++
		}
	}
	say(map[string]any{"event": "result", "impl": name, "held": still, "acquire_secs": took})
}

// pingpong hands one name to and fro between two clients; whoever holds it waits until the other has called.
func pingpong(name, addr string, c client, p params) {
	other, err := connect(name, addr)
	must(err)
	defer other.close()
	sides := []handle{handles(c, 1)[0], handles(other, 1)[0]}
	lock := p.text("tag", "bench") + "-pingpong"
	settle := time.Duration(p.number("settle_us", 5000)) * time.Microsecond
	jitter := int64(p.number("jitter_us", 0)) + 1
	free, err := sides[0].lock(lock)
	must(err)
	say(map[string]any{"event": "ready"})
	end := time.Now().Add(p.duration("secs", 3))
	type grant struct {
		free release
		at   time.Time
	}
	var taken []int64
	for turn := 1; time.Now().Before(end); turn++ {
		calling, got := make(chan bool), make(chan grant, 1)
		go func() {
			close(calling)
			free, err := sides[turn%2].lock(lock)
			must(err)
			got <- grant{free, time.Now()}
		}()
		<-calling
		time.Sleep(settle + time.Duration(rand.Int64N(jitter))*time.Microsecond)
		released := time.Now()
		must(free())
		next := <-got
		taken = append(taken, next.at.Sub(released).Microseconds())
		free = next.free
	}
	must(free())
	say(map[string]any{
		"event": "result", "impl": name, "cycles": len(taken), "p50_us": at(taken, 0.5), "p99_us": at(taken, 0.99),
		"max_us": at(taken, 1),
	})
}

// proof adds one to a plain number in a file, under the lock.
func proof(name string, c client, p params) {
	rounds, file, lock := int(p.number("rounds", 20)), p["file"], p.text("tag", "bench")+"-proof"
	all := handles(c, int(p.number("threads", 4)))
	say(map[string]any{"event": "ready"})
	bufio.NewReader(os.Stdin).ReadString('\n')
	var group sync.WaitGroup
	for _, h := range all {
		group.Add(1)
		go func() {
			defer group.Done()
			for range rounds {
				free, err := h.lock(lock)
				must(err)
				text, err := os.ReadFile(file)
				must(err)
				number, err := strconv.Atoi(strings.TrimSpace(string(text)))
				must(err)
				must(os.WriteFile(file, []byte(strconv.Itoa(number+1)), 0o644))
				must(free())
			}
		}()
	}
	group.Wait()
	say(map[string]any{"event": "result", "impl": name, "added": rounds * len(all)})
}

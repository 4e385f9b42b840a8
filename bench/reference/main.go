// Kubernetes' own allocator and CEL as a program that is asked by JSON lines: one question on standard input, one answer
// on standard output. Built by bench/golang.py from the published modules; not a part of the package.
//
// A question is a world (allocated, or timed where `milliseconds` is set), or one expression (`ask: "cel"`, see cel.go).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type world struct {
	Features                 []string                     `json:"features"`
	Node                     *v1.Node                     `json:"node"`
	Classes                  []*resourceapi.DeviceClass   `json:"classes"`
	Slices                   []*resourceapi.ResourceSlice `json:"slices"`
	Claims                   []*resourceapi.ResourceClaim `json:"claims"`
	AllocatedDevices         [][3]string                  `json:"allocatedDevices"`
	AllocatedSharedDeviceIDs [][4]string                  `json:"allocatedSharedDeviceIDs"`
	AggregatedCapacity       []struct {
		Device   [3]string                                       `json:"device"`
		Consumed map[resourceapi.QualifiedName]resource.Quantity `json:"consumed"`
	} `json:"aggregatedCapacity"`
	// Where this is set, the world is timed instead: for so many milliseconds, at least once.
	Milliseconds int `json:"milliseconds"`
	// Where this is set too, one selector is timed on the first device of the first slice.
	Expression string `json:"expression"`
	// "cel": the expression is compiled and evaluated instead of timed.
	Ask     string   `json:"ask"`
	Stored  bool     `json:"stored"`
	Derived bool     `json:"derived"`
	Devices []device `json:"devices"`
}

type answer struct {
	Results      []resourceapi.AllocationResult `json:"results"`
	Error        string                         `json:"error,omitempty"`
	Microseconds float64                        `json:"microseconds,omitempty"`
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, errors.New("there is no such class")
}

func switches(names []string) structured.Features {
	on := sets.New(names...)
	return structured.Features{
		AdminAccess:             on.Has("DRAAdminAccess"),
		CompatibilityGroups:     on.Has("DRADeviceCompatibilityGroups"),
		ConsumableCapacity:      on.Has("DRAConsumableCapacity"),
		DerivedAttributes:       on.Has("DRADerivedAttributes"),
		DeviceBindingAndStatus:  on.Has("DRADeviceBindingConditions+DRAResourceClaimDeviceStatus"),
		DeviceTaints:            on.Has("DRADeviceTaints"),
		FractionalCapacityRange: on.Has("DRAFractionalCapacityRange"),
		ListTypeAttributes:      on.Has("DRAListTypeAttributes"),
		OptionalNodeOperations:  on.Has("DRAOptionalNodeOperations"),
		PartitionableDevices:    on.Has("DRAPartitionableDevices"),
		PrioritizedList:         on.Has("DRAPrioritizedList"),
	}
}

func (w *world) allocated() structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, id := range w.AllocatedDevices {
		state.AllocatedDevices.Insert(structured.MakeDeviceID(id[0], id[1], id[2]))
	}
	for _, id := range w.AllocatedSharedDeviceIDs {
		share := types.UID(id[3])
		state.AllocatedSharedDeviceIDs.Insert(
			structured.MakeSharedDeviceID(structured.MakeDeviceID(id[0], id[1], id[2]), &share))
	}
	for _, used := range w.AggregatedCapacity {
		id := structured.MakeDeviceID(used.Device[0], used.Device[1], used.Device[2])
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, used.Consumed))
	}
	return state
}

func decide(w *world, cache *cel.Cache, state structured.AllocatedState) ([]resourceapi.AllocationResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	allocator, err := structured.NewAllocator(ctx, switches(w.Features), state, classes(w.Classes), w.Slices, cache)
	if err != nil {
		return nil, err
	}
	return allocator.Allocate(ctx, w.Node, w.Claims)
}

// The mean time of one evaluation in the fastest of many batches.
func matching(w *world, cache *cel.Cache) float64 {
	program := cache.GetOrCompile(w.Expression)
	if program.Error != nil {
		fmt.Fprintln(os.Stderr, program.Error)
		os.Exit(1)
	}
	spec := w.Slices[0].Spec
	device := cel.Device{Driver: spec.Driver, Attributes: spec.Devices[0].Attributes, Capacity: spec.Devices[0].Capacity}
	const batch = 200
	best := time.Duration(1 << 62)
	end := time.Now().Add(time.Duration(w.Milliseconds) * time.Millisecond)
	for first := true; first || time.Now().Before(end); first = false {
		start := time.Now()
		for range batch {
			if matches, _, err := program.DeviceMatches(context.Background(), device); err != nil || !matches {
				fmt.Fprintln(os.Stderr, "the selector does not match:", err)
				os.Exit(1)
			}
		}
		best = min(best, time.Since(start))
	}
	return float64(best.Nanoseconds()) / 1000 / batch
}

func main() {
	structured.EnableAllocators("experimental")
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	decoder := json.NewDecoder(input)
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	for decoder.More() {
		var w world
		if err := decoder.Decode(&w); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		features := switches(w.Features)
		cache := cel.NewCache(10, cel.Features{
			EnableConsumableCapacity: features.ConsumableCapacity,
			EnableListTypeAttributes: features.ListTypeAttributes,
		})
		if w.Ask == "cel" {
			if err := encoder.Encode(expression(&w)); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			continue
		}
		state := w.allocated()
		var out answer
		if w.Expression != "" {
			out.Microseconds = matching(&w, cache)
			if err := encoder.Encode(out); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			continue
		}
		results, err := decide(&w, cache, state)
		out.Results = results
		if err != nil {
			out.Error = err.Error()
		}
		if w.Milliseconds > 0 {
			best := time.Duration(1 << 62)
			end := time.Now().Add(time.Duration(w.Milliseconds) * time.Millisecond)
			for first := true; first || time.Now().Before(end); first = false {
				start := time.Now()
				_, _ = decide(&w, cache, state)
				best = min(best, time.Since(start))
			}
			out.Microseconds = float64(best.Nanoseconds()) / 1000
			out.Results = nil
		}
		if err := encoder.Encode(out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

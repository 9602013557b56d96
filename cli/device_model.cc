#include "device_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "decode_case.h"
#include "table.h"

namespace flashmla::cli {

namespace {

// NVIDIA's data sheets, without sparsity: GFLOP/s, GB/s.
constexpr std::array kDevices = {
    DeviceModel{"h200", "H200 SXM", 132, {989.0e3, 4800}},       DeviceModel{"h100", "H100 SXM", 132, {989.0e3, 3350}},
    DeviceModel{"h100-pcie", "H100 PCIe", 114, {756.0e3, 2000}}, DeviceModel{"h20", "H20", 78, {148.0e3, 4000}},
    DeviceModel{"a100", "A100 SXM 80 GB", 108, {312.0e3, 2039}}, DeviceModel{"l40s", "L40S", 142, {362.0e3, 864}},
};

DecodeShape shape_of(const cases::DecodeCase& c) {
  return {.batch = c.batch(),
          .seq_q = c.seq_q,
          .total_q = c.total_q(),
          .heads_q = c.heads_q,
          .heads_kv = c.heads_kv,
          .latent_dim = c.latent_dim,
          .rope_dim = c.rope_dim,
          .page_size = c.page_size,
          .dtype = c.dtype,
          .kv_format = plain_kv_format(c.dtype),
          .ragged_q = c.ragged,
          .causal = c.causal};
}

struct Floor {
  DecodeShape shape;
  std::vector<int64_t> lengths;
  Cost cost;
  Bound bound;
};

Floor floor_of(const DeviceModel& device, const cases::DecodeCase& decode_case) {
  Floor floor{shape_of(decode_case), lengths_of(decode_case), {}, {}};
  floor.cost = decode_cost(floor.shape, floor.lengths);
  floor.bound = bound_of(floor.cost, device.peak);
  return floor;
}

}  // namespace

const std::vector<std::string>& device_model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    std::ranges::transform(kDevices, std::back_inserter(all), [](const DeviceModel& device) { return device.name; });
    return all;
  }();
  return names;
}

const DeviceModel& device_model(const std::string& name) {
  return *std::ranges::find_if(kDevices, [&](const DeviceModel& device) { return name == device.name; });
}

std::string floors_text(const DeviceModel& device, const std::vector<cases::DecodeCase>& list) {
  Table table(
      {{"b"}, {"s_q"}, {"h_q"}, {"s_k"}, {"at least"}, {"bound", Align::kLeft}, {"flop/B"}, {"GB/s"}, {"TFLOP/s"}});
  for (const cases::DecodeCase& decode_case : list) {
    const Floor floor = floor_of(device, decode_case);
    const double time_us = floor.bound.time_us;
    table.add({fmt::format("{}", floor.shape.batch), fmt::format("{}", floor.shape.seq_q),
               fmt::format("{}", floor.shape.heads_q), lengths_text(floor.lengths), time_text(time_us),
               floor.bound.name(), fmt::format("{:.0f}", floor.cost.intensity()),
               fmt::format("{:.0f}", time_us > 0 ? floor.cost.bytes / time_us * 1e-3 : 0),
               fmt::format("{:.0f}", time_us > 0 ? floor.cost.flops / time_us * 1e-6 : 0)});
  }
  return fmt::format(
      "{}: MODELLED, NOT MEASURED. By its data sheet it does {:.0f} TFLOP/s (dense bf16) and reads {:.0f} GB/s; they "
      "meet\n"
      "at {:.0f} flop/B. {} multiprocessors. No call can take less than \"at least\"; launches and partial results "
      "come on top.\n\n{}",
      device.title, device.peak.peak_gflops * 1e-3, device.peak.peak_gbps, device.peak.ridge(), device.multiprocessors,
      table.text());
}

Json floors_json(const DeviceModel& device, const std::vector<cases::DecodeCase>& list, const std::string& commit) {
  Json json = run_header(commit, 0);
  json["modelled"] = true;
  json["device"] = device.title;
  json["multiprocessors"] = device.multiprocessors;
  json["ceilings"] = {{"peak_tflops", device.peak.peak_gflops * 1e-3},
                      {"peak_gbps", device.peak.peak_gbps},
                      {"ridge", device.peak.ridge()}};
  json["rows"] = Json::array();
  for (const cases::DecodeCase& decode_case : list) {
    const Floor floor = floor_of(device, decode_case);
    Json row;
    row["batch"] = floor.shape.batch;
    row["seq_q"] = floor.shape.seq_q;
    row["heads_q"] = floor.shape.heads_q;
    row["seq_k"] = floor.lengths.empty() ? 0 : *std::ranges::max_element(floor.lengths);
    row["dtype"] = dtype_name(floor.shape.dtype);
    row["flops"] = floor.cost.flops;
    row["bytes"] = floor.cost.bytes;
    row["bound"] = floor.bound.name();
    row["floor_us"] = floor.bound.time_us;
    json["rows"].push_back(row);
  }
  return json;
}

}  // namespace flashmla::cli

// The last part of `flashmla demo`: questions that a small model answers rightly only when its attention is right.
#pragma once

#include <string>

namespace flashmla::cli {

// Asks the demonstration model in `folder` and prints questions and answers; whether all are right.
bool demo_model_answers(const std::string& folder, int threads);

}  // namespace flashmla::cli
